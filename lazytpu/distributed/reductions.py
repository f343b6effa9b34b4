"""Map torch's reductions to those of the dialect (sum, product, min, max), with the ops needed before and after."""

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
_LOGICAL = {SUM: "or", MAX: "or", PRODUCT: "and", MIN: "and"}  # for booleans, as in NCCL


def reduce_op(options: Any) -> tuple[Kind, Any]:
    """Return the reduction of a call's options, and the factor if it is PREMUL_SUM (else None)."""
    op = getattr(options, "reduceOp", options)
    if op is None:
        return SUM, None
    if isinstance(op, dist.ReduceOp):
        state: Any = op.__getstate__()
        return state[0], state[1]
    return op, None


def is_bitwise(kind: Kind) -> bool:
    """Return whether a reduction is bitwise. XLA has none across processes, so all operands are gathered for it."""
    return kind in BITWISE


def kind_of(kind: Kind, dtype: torch.dtype) -> str:
    """Return the dialect's reduction for a dtype. Raises RuntimeError for a pair that torch does not support."""
    if dtype is torch.bool and kind in _LOGICAL:
        return _LOGICAL[kind]
    if kind not in _KINDS or dtype is torch.bool or (dtype.is_complex and kind in (PRODUCT, MIN, MAX)):
        raise RuntimeError(f"Cannot use ReduceOp.{getattr(kind, 'name', kind)} with {dtype}")
    return _KINDS[kind]


def before(kind: Kind, factor: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the operand of the dialect's reduction: `x`, scaled for PREMUL_SUM."""
    return x * factor if kind == dist.ReduceOp.PREMUL_SUM else x


def after(kind: Kind, reduced: torch.Tensor, size: int) -> torch.Tensor:
    """Return the final result from the dialect's reduction over `size` members: divided for AVG."""
    if kind != AVG:
        return reduced
    floating = reduced.is_floating_point() or reduced.is_complex()
    return reduced / size if floating else reduced.div(size, rounding_mode="trunc")


def combined(kind: Kind, gathered: torch.Tensor) -> torch.Tensor:
    """Reduce [n, ...] bitwise over its first dimension. Raises RuntimeError for floating-point and complex dtypes."""
    if gathered.dtype.is_floating_point or gathered.dtype.is_complex:
        raise RuntimeError(f"Cannot use ReduceOp.{kind.name} with {gathered.dtype}")
    result = gathered[0]
    for row in gathered[1:]:
        result = BITWISE[kind](result, row)
    return result
