"""The stand-in for TorchTPU that Helion imports; `make test-fronts` runs Helion itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import lazytpu.helion
from lazytpu.frontend import lines

USE = """
import sys
import lazytpu, lazytpu.helion
assert "torch_tpu" not in sys.modules and "jax" not in sys.modules
lazytpu.helion.install()
lazytpu.helion.install()
assert "jax" not in sys.modules and "helion" not in sys.modules

import jax, torch
import torch_tpu
from torch_tpu._internal.pallas import tpu_torch_pallas
from torch_tpu._internal.pallas.pallas import JaxCallable, get_default_pallas_mesh, jax_placeholder
from torch_tpu._internal.utils.hardware import get_tpu_device_name

assert get_tpu_device_name() == "TPU v6 lite"
x = torch.ones(4, device="tpu")
assert jax_placeholder(x) == jax.ShapeDtypeStruct((4,), "float32")

class Kernel(JaxCallable):
    __slots__ = ("more",)

kernel = Kernel(name="_double", jit_fn=jax.jit(lambda x: x * 2), trace_key="key", input_output_aliases={})
assert kernel(x).tolist() == [2] * 4 and not kernel.output_shapes
written = Kernel(name="_write", jit_fn=jax.jit(lambda x: x + 1), trace_key="key", input_output_aliases={0: 0})
written(x)
assert x.tolist() == [2] * 4
for refused in (get_default_pallas_mesh, tpu_torch_pallas.call_custom_kernel):
    try:
        refused()
    except NotImplementedError as error:
        assert "kernels" in str(error)
    else:
        raise AssertionError
"""


def test_the_names_that_helion_imports() -> None:
    subprocess.run([sys.executable, "-c", USE], check=True, timeout=300)


def test_refused_beside_torchtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_tpu", type(sys)("torch_tpu"))
    with pytest.raises(RuntimeError, match="stands in for, is installed"):
        lazytpu.helion.install()


def test_files_of_an_added_library_are_no_lines_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_added", list[str]())
    assert not lines.is_library("/lib/kernels/launcher.py")
    lines.add_library("/lib/kernels/__init__.py")
    assert lines.is_library("/lib/kernels/launcher.py")
    assert not lines.is_library("/lib/kernels_of_mine.py")
    monkeypatch.undo()
    lines.is_library.cache_clear()
    assert torch.ones(2, device="tpu").sum().item() == 2
