"""clamp and hardtanh of integers with bounds beyond the dtype, as the installed torch computes them on the CPU (before
2.15 it wraps or refuses them), and softshrink of half types, whose lambd it rounds from 2.14 on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional

BOUNDS = -300, -129, -1, 0, 2, 200, 256
FUNCTIONS: dict[str, Callable[[torch.Tensor, Any, Any], torch.Tensor]] = {
    "clamp": torch.clamp,
    "clamp_": lambda x, low, high: x.clone().clamp_(low, high),
    "hardtanh": lambda x, low, high: functional.hardtanh(x, low, high),
    "foreach": lambda x, low, high: torch._foreach_clamp_max(torch._foreach_clamp_min([x], low), high)[0],
}


def outcome(function: Any, x: torch.Tensor, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
    try:
        result = function(x, *bounds)
    except (RuntimeError, ValueError) as error:
        return type(error), str(error)
    return result.dtype, result.tolist()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64])
def test_integers_with_bounds_beyond_their_dtype(name: str, dtype: torch.dtype):
    x = torch.tensor([0, 1, 5, 100], dtype=dtype)
    for bounds in product(BOUNDS, BOUNDS):
        expected = outcome(FUNCTIONS[name], x, bounds)
        assert outcome(FUNCTIONS[name], x.to("tpu"), bounds) == expected, bounds


@pytest.mark.parametrize("bounds", [(None, -1), (-1, None), (None, 300), (300, None)])
def test_one_bound(bounds: tuple[Any, Any]):
    x = torch.tensor([0, 5, 255], dtype=torch.uint8)
    assert outcome(torch.clamp, x.to("tpu"), bounds) == outcome(torch.clamp, x, bounds)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softshrink_of_halves(dtype: torch.dtype):
    x = torch.arange(-8, 8, 0.0625).to(dtype) * 1.37
    for number in (0.3, 0.123):
        assert torch.equal(functional.softshrink(x.to("tpu"), number).cpu(), functional.softshrink(x, number))
