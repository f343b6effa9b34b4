"""Pairs of ops that XLA's algebraic simplifier would compute another way, with another result.

(a / b) / c becomes a / (b * c), and log(exp(a)) becomes a: fine for numbers near 1, but b * c may overflow or vanish,
which gives 0 or an infinity where each op by itself, and the CPU, give an ordinary number. XLA has no switch for it. So
the inner result is rounded to the precision that it has: an op that changes nothing, and that XLA does not look into.
The compiler of a TPU has no rounding of float64: there it is a barrier, which costs fusions.

A quotient by a constant, or by a repeated divisor, becomes a product with the reciprocal, which is rounded once more,
and which is 0 for a large divisor: 3e38 / 1e38 would be 0. XLA would move a rounding of what is repeated to before its
repetition; so the divisor becomes one that depends on the dividend: where that is NaN, and so the quotient, it is NaN
too. Not on a TPU, which has no division but by reciprocals.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from lazytpu.ir import pointwise as ops
from lazytpu.ir.base import TensorOp
from lazytpu.ir.reductions import ReduceOp
from lazytpu.ir.shape import BroadcastInDimOp, ReshapeOp, SliceOp, TransposeOp
from lazytpu.ir.types import dtype_of, is_complex
from lazytpu.lowering.emission import Emission
from lazytpu.runtime.mlir import ir
from lazytpu.runtime.mlir import stablehlo as hlo

# What XLA rewrites, by the outer op (jaxlib 0.10.2, each seen to change values far beyond the last bit).
REWRITTEN: dict[type[TensorOp], tuple[type[TensorOp], ...]] = {
    ops.DivOp: (ops.DivOp, ops.PowOp, ops.ExpOp),
    ops.MulOp: (ops.ExpOp,),
    ops.LogOp: (ops.ExpOp, ops.PowOp),
    ops.PowOp: (ops.ExpOp,),
    ops.SqrtOp: (ops.MulOp,),
}

# XLA takes these out where they change nothing, as a sum over one element.
_MOVES = (BroadcastInDimOp, ops.ConvertOp, ReduceOp, ReshapeOp, SliceOp, TransposeOp)

_BITS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}  # of the exponent and the mantissa
_PART = {"c64": "f32", "c128": "f64"}


def guarded(e: Emission, op: TensorOp, operands: Sequence[ir.Value]) -> Sequence[ir.Value]:
    """The operands of `op`, those rounded that XLA would rewrite together with it."""
    inner = REWRITTEN.get(type(op))
    if inner is None:
        return operands
    dtype = dtype_of(op.operands[0].type)
    operands = [
        _apart(e, x, dtype) if isinstance(_maker(operand), inner) else x
        for operand, x in zip(op.operands, operands, strict=True)
    ]
    if isinstance(op, ops.DivOp) and _is_inverted(op.operands[1], dtype) and e.target != "tpu":
        dividend, divisor = operands
        not_a_number = e.compare("NE", dividend, dividend, dtype)
        return [dividend, hlo.select(not_a_number, dividend, divisor)]
    return operands


def _is_inverted(divisor: SSAValue, dtype: str) -> bool:
    """Whether XLA may find that a divisor is repeated: it looks through all that is computed pointwise."""
    return (dtype in _BITS or dtype in _PART) and isinstance(divisor.owner, Operation)


def _maker(value: SSAValue) -> Operation | None:
    while isinstance(value.owner, _MOVES):
        value = value.owner.operands[0]
    return value.owner if isinstance(value.owner, Operation) else None


def _apart(e: Emission, x: ir.Value, dtype: str) -> ir.Value:
    """x, which XLA does not look into."""
    if dtype == "f64" and e.target == "tpu":
        return e.create("stablehlo.optimization_barrier", [x], x.type)
    if is_complex(dtype):
        bits = _BITS[_PART[dtype]]
        return hlo.complex(hlo.reduce_precision(hlo.real(x), *bits), hlo.reduce_precision(hlo.imag(x), *bits))
    return hlo.reduce_precision(x, *_BITS[dtype]) if dtype in _BITS else x
