"""The entry points of the package: torch's backend, the dialect and passes in xDSL's tools, and two commands."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution, entry_points
from pathlib import Path

import pytest
from xdsl.universe import Universe

ROOT = Path(__file__).resolve().parents[2]


def test_torch_finds_the_backend():
    backends = {e.name: e.value for e in entry_points(group="torch.backends")}
    assert backends.get("lazytpu") == "lazytpu.wiring:register", "install the checkout: pip install -e ."


def test_xdsl_finds_the_dialect_and_the_passes():
    universe = Universe.get_multiverse()
    assert universe.all_dialects["lazytpu"]().name == "lazytpu"
    assert [name for name in universe.all_passes if name.startswith("lazytpu-")]


@pytest.mark.parametrize("command", ["lazytpu-opt", "lazytpu-show"])
def test_commands_have_help(command: str):
    path = Path(sys.executable).parent / command
    done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {command}")


def test_version_equals_the_package_version():
    import lazytpu

    assert distribution("lazytpu").version == lazytpu.__version__
    assert lazytpu.__version__ in (ROOT / "CHANGELOG.md").read_text()
