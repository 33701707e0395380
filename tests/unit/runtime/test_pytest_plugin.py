"""The plugin is loaded by every pytest run, also of projects that do not use it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.testing import broker


def test_loading_the_plugin_loads_nothing_else_of_penstock():
    code = "import sys, penstock.testing.pytest_plugin; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = {name for name in output.split() if name.startswith(("penstock", "msgspec", "uvloop"))}
    assert loaded == {"penstock", "penstock.testing", "penstock.testing.pytest_plugin"}


def test_a_broker_that_cannot_start_leaves_nothing_behind(port_in_use):
    b = broker(settings={"listenPort": str(port_in_use)})
    with pytest.raises(OSError, match="listen"), b:
        pytest.fail("it must not start")
    assert not b.data_dir.exists()
