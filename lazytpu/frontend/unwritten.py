"""The contents of memory that nothing has written: zeros that take no memory. Under torch.use_deterministic_algorithms,
while torch.utils.deterministic.fill_uninitialized_memory is set, the fill values of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.torch_private import fills_unwritten, is_deterministic


def fill(tensor: torch.Tensor) -> torch.Tensor:
    """Fill `tensor`, whose elements nothing has written, where torch fills memory: with NaN, else with the largest
    number."""
    if is_deterministic() and fills_unwritten():
        _fill(tensor)
    return tensor


# Ops that record a tensor which nothing has written.
_UNWRITTEN = frozenset({"aten::empty_like", "aten::empty_permuted", "aten::new_empty"})


def filling(op: OpOverload, record: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `record`, the recording kernel of `op`, so that an unwritten result is filled."""
    if op._schema.name not in _UNWRITTEN:
        return record
    return lambda *args, **kwargs: fill(record(*args, **kwargs))


def _fill(tensor: torch.Tensor) -> None:
    dtype = tensor.dtype
    if dtype.is_floating_point or dtype.is_complex:
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(True if dtype is torch.bool else torch.iinfo(dtype).max)
