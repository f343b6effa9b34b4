"""Elementwise ops: operands and result have the same padding, which is computed like any element."""

from __future__ import annotations

from collections.abc import Sequence

from lazytpu.ir import pointwise as ops
from lazytpu.ir.base import TensorOp
from lazytpu.ir.types import shape_of
from lazytpu.passes.padding.dims import Refused, merged_all, sized
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Walk, rule

KEEP_ZERO = frozenset(
    ("neg", "abs", "sign", "ceil", "floor", "round_nearest_even", "sqrt", "cbrt", "sin", "tan", "tanh", "erf", "expm1")
    + ("log1p", "convert", "real", "imag", "add", "sub", "mul", "max", "min")
)
"""Ops that return 0 if all their operands are 0."""


@rule(ops.UnaryOp, ops.BinaryOp, ops.CompareOp, ops.SelectOp, ops.ClampOp, ops.ConvertOp)
def elementwise(w: Walk, op: TensorOp) -> Sequence[Padded]:
    """Merge the padding of the operands; it is 0 in the result if it is 0 in all operands and the op keeps zeros."""
    shape = shape_of(op.results[0])
    operands = [w.of(x) for x in op.operands if shape_of(x) == shape]
    zero = op.name.removeprefix("lazytpu.") in KEEP_ZERO and all(x.fill is not None and x.fill == 0 for x in operands)
    return [Padded(merged_all([x.dims for x in operands]), 0 if zero else None)]


@rule(ops.BitcastConvertOp)
def bitcast(w: Walk, op: ops.BitcastConvertOp) -> Sequence[Padded]:
    """Convert the bit width, which adds or removes a last dimension without padding."""
    dims, shape = w.dims(op.operands[0]), shape_of(op.results[0])
    if len(shape) > len(dims):
        dims = (*dims, sized(shape[-1]))
    elif len(shape) < len(dims):
        if dims[-1].padded:
            raise Refused("the parts of one number are a sized dimension")
        dims = dims[:-1]
    return [Padded(dims)]
