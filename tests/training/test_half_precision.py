"""Optimizers in bfloat16 and float16 err no more than on the CPU, in which each op rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "RMSprop": {"centered": True},
    "Adadelta": {},
    "Rprop": {},
    "NAdam": {},
    "RAdam": {},
    "ASGD": {},
    "Adamax": {},
}


def weights(name: str, device: str, dtype: torch.dtype, foreach: bool, **options: Any) -> list[torch.Tensor]:
    """The weights after each of four steps."""
    numbers = torch.Generator().manual_seed(len(name))
    weight = torch.randn(33, generator=numbers).to(dtype).to(device).requires_grad_()
    optimizer = getattr(torch.optim, name)([weight], foreach=foreach, **options)
    results: list[torch.Tensor] = []
    for _ in range(4):
        weight.grad = torch.randn(33, generator=numbers).bfloat16().to(dtype).to(device)
        optimizer.step()
        results.append(weight.detach().cpu().double())
    return results


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_errors_are_at_most_twice_the_errors_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    for foreach in (False, True):
        options = OPTIMIZERS[name]
        exact = weights(name, "cpu", torch.float64, foreach, **options)
        actual, reference = (weights(name, device, dtype, foreach, **options) for device in ("tpu", "cpu"))
        for want, got, cpu in zip(exact, actual, reference, strict=True):
            ulp = torch.finfo(dtype).eps * want.abs().max()
            assert (got.isnan() == cpu.isnan()).all()
            assert (got - want).abs().nan_to_num(0, 0, 0).max() <= 2 * (cpu - want).abs().nan_to_num(
                0, 0, 0
            ).max() + 2 * ulp
