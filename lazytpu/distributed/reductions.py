"""Reductions of process groups as what the dialect has: sums, products, minima and maxima, and what is around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Kind = Any  # dist.ReduceOp.RedOpType
SUM, AVG, PRODUCT, MIN, MAX = (getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"))
BITWISE: dict[Any, Callable[..., torch.Tensor]] = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}
_KINDS = {SUM: "add", AVG: "add", PRODUCT: "mul", MIN: "min", MAX: "max", dist.ReduceOp.PREMUL_SUM: "add"}
_LOGICAL = {SUM: "or", MAX: "or", PRODUCT: "and", MIN: "and"}  # of booleans, as NCCL has them


def reduce_op(options: Any) -> tuple[Kind, Any]:
    """The operation of a call's options, and the factor of PREMUL_SUM."""
    op = getattr(options, "reduceOp", options)
    if op is None:
        return SUM, None
    if isinstance(op, dist.ReduceOp):
        state: Any = op.__getstate__()
        return state[0], state[1]
    return op, None


def is_bitwise(kind: Kind) -> bool:
    """Whether XLA has no such reduction between processes, so that everything is gathered."""
    return kind in BITWISE


def kind_of(kind: Kind, dtype: torch.dtype) -> str:
    """The reduction of the dialect. Raises RuntimeError for one that the dtype has not."""
    if dtype is torch.bool and kind in _LOGICAL:
        return _LOGICAL[kind]
    if kind not in _KINDS or dtype is torch.bool or (dtype.is_complex and kind in (PRODUCT, MIN, MAX)):
        raise RuntimeError(f"Cannot use ReduceOp.{getattr(kind, 'name', kind)} with {dtype}")
    return _KINDS[kind]


def before(kind: Kind, factor: Any, x: torch.Tensor) -> torch.Tensor:
    """What is reduced in place of `x`."""
    return x * factor if kind == dist.ReduceOp.PREMUL_SUM else x


def after(kind: Kind, reduced: torch.Tensor, size: int) -> torch.Tensor:
    """The result, from what was reduced over `size` members."""
    if kind != AVG:
        return reduced
    floating = reduced.is_floating_point() or reduced.is_complex()
    return reduced / size if floating else reduced.div(size, rounding_mode="trunc")


def combined(kind: Kind, gathered: torch.Tensor) -> torch.Tensor:
    """The bitwise reduction of [n, ...] over its first dimension."""
    if gathered.dtype.is_floating_point or gathered.dtype.is_complex:
        raise RuntimeError(f"Cannot use ReduceOp.{kind.name} with {gathered.dtype}")
    result = gathered[0]
    for part in gathered[1:]:
        result = BITWISE[kind](result, part)
    return result
