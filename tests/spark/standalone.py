"""A Spark standalone cluster on loopback, started from the pip package: a master and workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from penstock.spark.spark_session import find_java


class Standalone:
    """Ports are the system's choice; the master's own log says which they are."""

    def __init__(self, folder: Path, *, workers: int = 2, memory: str = "1g") -> None:
        self._folder = folder
        self._java = find_java()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""
        try:
            master = self._start("Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            self.url = self._wait(master, r"Starting Spark master at (spark://\S+)")
            for _ in range(workers):
                options = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0", "-c", "1", "-m", memory)
                log = self._start("Worker", *options, self.url)
                self._wait(log, r"Successfully registered with master (\S+)")
        except BaseException:
            self.stop()
            raise

    def _start(self, kind: str, *arguments: str) -> Path:
        home = Path(pyspark.__file__).parent
        log = self._folder / f"{kind.lower()}-{len(self._processes)}.log"
        work = self._folder / f"work-{len(self._processes)}"
        work.mkdir(parents=True)
        # Spark's own script: it sets what workers need to build the command of an executor.
        command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]
        environment = os.environ | {
            "JAVA_HOME": str(self._java.parent.parent),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(work),
            "PYSPARK_PYTHON": sys.executable,
        }
        with open(log, "wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=work)
        self._processes.append(process)
        return log

    def _wait(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + 180
        while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Spark did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)
        return found[1]

    def stop(self) -> None:
        """Workers first; their executors end with them."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
