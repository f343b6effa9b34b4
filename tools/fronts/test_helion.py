"""Helion's kernels on the device: values, gradients, programs, and times of its autotuner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lazytpu
import lazytpu.helion

pytestmark = pytest.mark.filterwarnings("ignore")  # of Helion and its imports
lazytpu.helion.install()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take Helion's first configuration of each kernel, for Pallas, and none of an earlier run."""
    monkeypatch.setenv("HELION_BACKEND", "pallas")
    monkeypatch.setenv("HELION_SKIP_CACHE", "1")
    monkeypatch.setenv("HELION_AUTOTUNE_EFFORT", "none")


def operands() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "x": torch.randn(128, 256),
        "y": torch.randn(128, 256),
        "w": torch.randn(256, 128),
        "gain": torch.randn(256),
    }


CASES: dict[str, tuple[tuple[str, ...], tuple[Any, ...], Callable[..., torch.Tensor]]] = {
    "add": (("x", "y"), (), lambda x, y: x + y),
    "matmul": (("x", "w"), (), lambda x, w: x @ w),
    "softmax": (("x",), (), lambda x: x.softmax(-1)),
    "rms_norm": (("x", "gain"), (1e-5,), lambda x, gain, eps: torch.nn.functional.rms_norm(x, [256], gain, eps)),
    "swiglu": (("x", "y"), (), lambda x, y: torch.nn.functional.silu(x) * y),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_values_in_one_program(name: str, dtype: torch.dtype) -> None:
    from tools.fronts import helion_kernels

    names, settings, expected = CASES[name]
    tensors = [operands()[operand].to(dtype) for operand in names]
    on_device = [t.to("tpu") for t in tensors]
    kernel = getattr(helion_kernels, name)
    lazytpu.sync()
    before = lazytpu.metrics()
    result = kernel(*on_device, *settings)
    got = result.cpu()
    after = lazytpu.metrics()
    assert result.device.type == "tpu"
    assert after["steps"] == before["steps"] + 1
    assert after["cpu_fallbacks"] == before["cpu_fallbacks"]
    torch.testing.assert_close(got.float(), expected(*[t.float() for t in tensors], *settings), rtol=2e-2, atol=2e-2)
    if dtype is torch.float32:
        torch.testing.assert_close(got, expected(*tensors, *settings), rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("name", ["matmul", "softmax", "swiglu"])
def test_gradients(name: str) -> None:
    from tools.fronts import helion_kernels

    names, settings, expected = CASES[name]
    gradients = []
    for device, call in (("cpu", expected), ("tpu", getattr(helion_kernels, name))):
        leaves = [operands()[operand].to(device).requires_grad_() for operand in names]
        call(*leaves, *settings).square().sum().backward()
        gradients.append([leaf.grad.cpu() for leaf in leaves if leaf.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) == len(names)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def test_a_loop_of_kernels_and_ops_is_one_program(tmp_path: Path) -> None:
    from tools.fronts.helion_kernels import matmul, softmax

    x, w = operands()["x"].to("tpu"), operands()["w"].to("tpu")
    lazytpu.sync()
    before = lazytpu.metrics()
    with lazytpu.options(cache_dir=str(tmp_path)):  # it has no program of an earlier run
        for _ in range(5):
            (softmax(matmul(x, w)) + 1).sum().item()
    after = lazytpu.metrics()
    assert after["compiles"] - before["compiles"] == 1
    assert after["hits"] - before["hits"] == 4


def test_in_a_compiled_function() -> None:
    from tools.fronts.helion_kernels import matmul, softmax

    x, w = operands()["x"], operands()["w"]
    compiled = torch.compile(lambda x, w: softmax(matmul(x, w)) + 1)
    torch.testing.assert_close(compiled(x.to("tpu"), w.to("tpu")).cpu(), (x @ w).softmax(-1) + 1)


def test_the_line_of_a_kernel_is_its_users() -> None:
    """Not one of Helion's launcher."""
    from lazytpu.rehearsal.rehearse import rehearse_once
    from tools.fronts.helion_kernels import add

    x = operands()["x"].to("tpu")
    (program,) = rehearse_once(lambda: add(x, x))
    lines = {str(record.line).rpartition("/")[2].partition(":")[0] for record in program.records}
    assert lines == {"test_helion.py"}


def test_the_autotuner_times_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each timed call runs its kernel, and the chosen configuration is right."""
    from tools.fronts.helion_kernels import swiglu

    monkeypatch.setattr(swiglu.settings, "autotune_effort", "quick")  # it read the environment when it was decorated
    swiglu.reset()
    x, y = operands()["x"].to("tpu"), operands()["y"].to("tpu")
    lazytpu.sync()
    before = lazytpu.metrics()["steps"]
    config = swiglu.autotune((x, y))
    assert config is not None
    assert lazytpu.metrics()["steps"] - before > 100  # each configuration runs many times
    torch.testing.assert_close(swiglu(x, y).cpu(), torch.nn.functional.silu(x.cpu()) * y.cpu(), rtol=1e-5, atol=1e-5)


def test_installed_once_and_not_beside_torchtpu(monkeypatch: pytest.MonkeyPatch) -> None:
    lazytpu.helion.install()
    monkeypatch.setitem(sys.modules, "torch_tpu", type(sys)("torch_tpu"))
    with pytest.raises(RuntimeError, match="stands in for, is installed"):
        lazytpu.helion.install()
