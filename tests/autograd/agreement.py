"""Running one function on the CPU and on the device, and comparing all that it returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def numbers(*shape: int, device: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same normal random numbers on every device."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).to(device)


def filled(module: torch.nn.Module, device: str, seed: int = 0) -> torch.nn.Module:
    """The module with the same parameters on every device."""
    for p in module.parameters():
        p.data.copy_(numbers(*p.shape, device="cpu", seed=seed))
    return module.to(device)


def agree(function: Callable[[str], Any], *, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """`function(device)` returns the same on both: tensors within tolerance, everything else equal."""
    expected, got = (pytree.tree_leaves(function(device)) for device in ("cpu", "tpu"))
    assert len(got) == len(expected)
    for i, (g, e) in enumerate(zip(got, expected, strict=True)):
        if isinstance(e, torch.Tensor):
            assert g.device.type == "tpu", f"result {i} is on {g.device}"
            close = {"rtol": rtol, "atol": atol, "equal_nan": True}
            torch.testing.assert_close(g.detach().cpu(), e.detach(), **close, msg=lambda m, i=i: f"result {i}: {m}")
        else:
            assert g == e, f"result {i}"
