"""The table of hooks agrees with their files, and none is loaded without its library."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from lazytpu.frontend.libraries.hooks import FILES


@pytest.mark.parametrize("file", FILES)
def test_a_hook_is_listed_for_every_module_that_it_changes(file: str):
    assert set(FILES[file]) == import_module(f"lazytpu.frontend.libraries.{file}").HOOKS.keys()


def test_importing_the_device_loads_no_hook_of_a_library():
    script = "import sys, lazytpu; print(*[name for name in sys.modules if name.endswith('_hook')])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.rpartition(".")[2] in FILES]


def test_a_hook_acts_when_its_library_is_imported():
    script = (
        "import sys, lazytpu\n"
        "name = 'lazytpu.frontend.libraries.safetensors_hook'\n"
        "assert name not in sys.modules\n"
        "import safetensors\n"
        "assert name in sys.modules\n"
        "print(safetensors.safe_open.__module__)\n"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "lazytpu.frontend.libraries.safetensors_hook"
