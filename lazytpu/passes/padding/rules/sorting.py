"""Sorts: padding has the last key. It comes after equal true keys, since sorts are stable."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from lazytpu.ir import sorting as ops
from lazytpu.ir.base import TensorOp, integer
from lazytpu.ir.types import dtype_of, is_float
from lazytpu.passes.padding.dims import Refused, merged_all, sized
from lazytpu.passes.padding.masks import Padded, highest, lowest
from lazytpu.passes.padding.walk import Rule, Walk


def sort(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Sort with padding last; NaN is the greatest key. The true elements of a merged dimension are contiguous
    afterwards."""
    assert isinstance(op, ops.SortOp)
    along, dims = integer(op.dim), merged_all([w.dims(x) for x in op.operands])
    dtype = dtype_of(op.operands[0])
    last = lowest(dtype) if integer(op.descending) else nan if is_float(dtype) else highest(dtype)
    if dims[along].padded and w.dims(op.operands[0])[along].factors != dims[along].factors:
        raise Refused("the keys of a sort are all equal, and padded in another way than what is sorted")
    w.mask_operand(op, 0, [along], last)
    result = list(dims)
    if dims[along].padded:
        result[along] = sized(dims[along].size, dims[along].total)
    else:
        result[along] = sized(dims[along].size)
    return [Padded(tuple(result)) for _ in op.results]


RULES: dict[type[TensorOp], Rule] = {ops.SortOp: sort}
