"""Prints the Python that the virtualenv is made from: the first python3 on the PATH, or one clearly faster.

Two builds of one version can differ by a third: one is optimised with a profile, the other calls its own
functions through the dynamic linker. That is a third of what the broker and the client do in a second.
"""

import os
import subprocess
import sys

NEEDED = (3, 11)
ROUNDS = 5
CLEARLY_FASTER = 0.9
PROBE = f"""
import sys
if sys.version_info < {NEEDED}: sys.exit(1)
import ensurepip, time, venv
class Counter:
    def __init__(self):
        self.value = 0
    def add(self, number):
        self.value += number * number
        return self.value
def work():
    counter, parts = Counter(), []
    for number in range(5000):
        parts.append(str(counter.add(number)).encode())
    return b"".join(parts)
def timed():
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
print(sys.executable)
print(min(timed() for _ in range(10)))
"""


def probe(python):
    """Its real path and the seconds it took; None if it is too old or cannot make a virtualenv."""
    try:
        done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    path, seconds = done.stdout.split("\n")[:2]
    return path, float(seconds)


def main():
    best = {}
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    for _ in range(ROUNDS):  # in turn, so that what else the machine does slows all of them
        for folder in folders:
            found = probe(os.path.join(folder, "python3"))
            if found:
                path, seconds = found
                best[path] = min(seconds, best.get(path, seconds))
    if not best:
        sys.exit("no python3 on the PATH is Python {}.{} or newer and has venv and ensurepip".format(*NEEDED))
    first = next(iter(best))
    fastest = min(best, key=best.get)
    print(fastest if best[fastest] < CLEARLY_FASTER * best[first] else first)


if __name__ == "__main__":
    main()
