"""Compares calls on the device with the CPU, many in one program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import lazytpu
from tools.conformance.compare import TOLERANCES
from tools.conformance.samples import tensors, tree_map


@dataclass(frozen=True)
class Case:
    """A function of tensors, and its CPU tensors; its writes into them are compared too."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]

    def __str__(self) -> str:
        shown = ", ".join(f"{t.dtype}{list(t.shape)}".removeprefix("torch.") for t in self.inputs)
        return f"{self.name}({shown})"

    def run(self, device: str) -> Any:
        """Return (results, inputs afterwards), or the call's error."""
        inputs = [t.clone().to(device) for t in self.inputs]
        try:
            return self.function(*inputs), inputs
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            return error


def agree(*cases: Case) -> None:
    """Assert that every case agrees with the CPU: values, dtypes, shapes, strides, errors."""
    got = [case.run("tpu") for case in cases]
    lazytpu.sync()
    for case, on_device in zip(cases, got, strict=True):
        on_host = case.run("cpu")
        if isinstance(on_host, Exception) or isinstance(on_device, Exception):
            assert type(on_device) is type(on_host), f"{case}: {on_device!r}, expected {on_host!r}"
            continue
        for g, w in zip(tensors(on_device), tensors(on_host), strict=True):
            _same(case, g, w)
        plain = [tree_map(lambda x: None if isinstance(x, torch.Tensor) else x, r[0]) for r in (on_device, on_host)]
        assert plain[0] == plain[1], f"{case}: {plain[0]}, expected {plain[1]}"


def _same(case: Case, got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.device.type == "tpu", f"{case}: on {got.device}"
    assert got.shape == want.shape and got.dtype == want.dtype, f"{case}: {got.dtype}{list(got.shape)}, expected {want}"
    if want.numel() > 1:
        strides = [[s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] for t in (got, want)]
        assert strides[0] == strides[1], f"{case}: strides {got.stride()}, expected {want.stride()}"
    rtol, atol = TOLERANCES.get(want.dtype, (0.0, 0.0))
    torch.testing.assert_close(
        got.cpu(), want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{case} of {case.inputs}: {text}"
    )
