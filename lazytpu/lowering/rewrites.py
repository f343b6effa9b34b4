"""Pairs of ops that XLA's algebraic simplifier would compute another way, with another result.

(a / b) / c becomes a / (b * c), and log(exp(a)) becomes a: fine for numbers near 1, but b * c may overflow or vanish,
which gives 0 or an infinity where each op by itself, and the CPU, give an ordinary number. XLA has no switch for it. So
the inner result is rounded to the precision that it has: an op that changes nothing, and that XLA does not look into.

Several quotients by one repeated divisor become products with its reciprocal. In float32 the last bit may be another
then, as docs/modes.md says; in 16 bits, where every bit is promised, that is kept from it, too.
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
from lazytpu.runtime.client import ir
from lazytpu.runtime.client import stablehlo as hlo

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
    if isinstance(op, ops.DivOp) and dtype in ("f16", "bf16"):
        return [_rounded(x, dtype) for x in operands]
    return [
        _rounded(x, dtype) if isinstance(_maker(operand), inner) else x
        for operand, x in zip(op.operands, operands, strict=True)
    ]


def _maker(value: SSAValue) -> Operation | None:
    while isinstance(value.owner, _MOVES):
        value = value.owner.operands[0]
    return value.owner if isinstance(value.owner, Operation) else None


def _rounded(x: ir.Value, dtype: str) -> ir.Value:
    if is_complex(dtype):
        bits = _BITS[_PART[dtype]]
        return hlo.complex(hlo.reduce_precision(hlo.real(x), *bits), hlo.reduce_precision(hlo.imag(x), *bits))
    return hlo.reduce_precision(x, *_BITS[dtype]) if dtype in _BITS else x
