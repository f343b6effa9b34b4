"""Guards against inexact rewrites of XLA's algebraic simplifier.

It rewrites (a / b) / c to a / (b * c), and log(exp(a)) to a. That is harmless for numbers near 1, but b * c may
overflow or underflow, which gives 0 or infinity where the ops one by one, and the CPU, give an ordinary number. XLA has
no switch for it. So the inner result is rounded to the precision that it already has: an op that changes nothing, and
that the simplifier does not look through. The TPU compiler cannot round float64; there a barrier takes its place, which
costs fusions.

A division by a constant or by a broadcast becomes a multiplication by the reciprocal, which is rounded once more, and
is 0 for a large divisor: 3e38 / 1e38 would be 0. XLA would move a rounding of the divisor before its broadcast, so the
divisor is made to depend on the dividend instead: it is replaced by the dividend where the dividend is NaN, and so is
the quotient. This is not done on a TPU, which can only divide by multiplying with reciprocals.

A sum with a constant zero becomes the other operand, so that -0.0 + 0.0 would be -0.0. The constant is made to depend
on that operand in the same way. So are the sum of one element by a reduction or window, and of a repeated one, to which
zero is added here. A complex number times 1 becomes the number, whose infinities would give NaN.

It also merges two `bitcast_convert`, and ignores that each adds or removes a dimension: its verifier refuses the merger
of ui8 to f32 to bf16. So no `bitcast_convert` is emitted on the result of another.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from lazytpu.ir import pointwise as ops
from lazytpu.ir.base import TensorOp
from lazytpu.ir.constants import ConstantOp, number_of
from lazytpu.ir.reductions import ReduceOp
from lazytpu.ir.shape import BroadcastInDimOp, ConcatenateOp, PadOp, ReshapeOp, SliceOp, TransposeOp
from lazytpu.ir.types import dtype_of, is_complex
from lazytpu.lowering.emission import Emission
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo

# Inner ops that XLA rewrites, by outer op (jaxlib 0.10.2; each was seen to change values far beyond the last bit).
REWRITTEN: dict[type[TensorOp], tuple[type[TensorOp], ...]] = {
    ops.DivOp: (ops.DivOp, ops.PowOp, ops.ExpOp),
    ops.MulOp: (ops.ExpOp,),
    ops.LogOp: (ops.ExpOp, ops.PowOp),
    ops.PowOp: (ops.ExpOp,),
    ops.SqrtOp: (ops.MulOp,),
}

# XLA removes these where they change nothing, such as a sum over one element.
_ELEMENTS_KEPT = (ops.ConvertOp, ReshapeOp, SliceOp, TransposeOp)
_MOVES = (*_ELEMENTS_KEPT, BroadcastInDimOp, ReduceOp)

# The elements keep their bits and, in memory order, their places.
_BITS_KEPT = ("stablehlo.bitcast_convert", "stablehlo.reshape")

_BITS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}  # of the exponent and the mantissa
_PART = {"c64": "f32", "c128": "f64"}


def guarded(e: Emission, op: TensorOp, operands: Sequence[ir.Value]) -> Sequence[ir.Value]:
    """The operands of `op`, with guards on those that XLA would rewrite together with it."""
    dtype = dtype_of(op.operands[0].type)
    if dtype not in _BITS and dtype not in _PART:
        return operands
    if inner := REWRITTEN.get(type(op)):
        operands = [
            hidden(e, x, dtype) if isinstance(_through(operand, _MOVES).owner, inner) else x
            for operand, x in zip(op.operands, operands, strict=True)
        ]
    if isinstance(op, ops.AddOp):
        return _kept(e, op, operands, 0)
    if isinstance(op, ops.MulOp) and is_complex(dtype):
        return _kept(e, op, operands, 1)
    if isinstance(op, ops.DivOp) and _is_inverted(op.operands[1]) and e.target != "tpu":
        dividend, divisor = operands
        not_a_number = e.compare("NE", dividend, dividend, dtype)
        return [dividend, hlo.select(not_a_number, dividend, divisor)]
    return operands


def _kept(e: Emission, op: TensorOp, operands: Sequence[ir.Value], neutral: int) -> Sequence[ir.Value]:
    """The two operands of a commutative op; one that XLA may fold to the number `neutral` depends on the other."""
    dtype = dtype_of(op.operands[0].type)
    for (operand, x), y in zip(zip(op.operands, operands, strict=True), reversed(operands), strict=True):
        if operand in e.constants and not _is_another(operand, neutral):
            return [y, _depending(e, x, y, dtype)]
    return operands


def _is_another(value: SSAValue, number: int) -> bool:
    return isinstance(value.owner, ConstantOp) and number_of(value.owner.value) != number


def _depending(e: Emission, constant: ir.Value, x: ir.Value, dtype: str) -> ir.Value:
    """Return a value in place of `constant` whose sum or product with x is the same: x where x is NaN."""
    if is_complex(dtype):
        part = _PART[dtype]
        return hlo.complex(*(_depending(e, of(constant), of(x), part) for of in (hlo.real, hlo.imag)))
    return hlo.select(e.compare("NE", x, x, dtype), x, constant)


def from_zero(e: Emission, x: ir.Value, dtype: str) -> ir.Value:
    """0.0 + x for floats, x for others: the sum of one element."""
    if dtype not in _BITS and dtype not in _PART:
        return x
    zero = e.constant(0, dtype, ir.RankedTensorType(x.type).shape)
    return hlo.add(x, _depending(e, zero, x, dtype))


def is_repeated(e: Emission, value: SSAValue) -> bool:
    """Whether XLA may find a value to be a broadcast, whose sum is a product: -0.0 for any number of -0.0."""
    return value in e.constants or isinstance(_through(value, _ELEMENTS_KEPT).owner, BroadcastInDimOp)


def is_joined(value: SSAValue) -> bool:
    """Whether XLA may reduce the parts of a value on their own: a part of one element then keeps its -0.0."""
    return isinstance(_through(value, _ELEMENTS_KEPT).owner, (ConcatenateOp, PadOp))


def hidden(e: Emission, x: ir.Value, dtype: str) -> ir.Value:
    """x behind an op that the simplifier does not look through: a rounding to its own precision, or else a barrier."""
    if is_complex(dtype):
        bits = _BITS[_PART[dtype]]
        return hlo.complex(hlo.reduce_precision(hlo.real(x), *bits), hlo.reduce_precision(hlo.imag(x), *bits))
    if dtype not in _BITS or (dtype == "f64" and e.target == "tpu"):
        return e.create("stablehlo.optimization_barrier", [x], x.type)
    return hlo.reduce_precision(x, *_BITS[dtype])


def reinterpreted(e: Emission, x: ir.Value, result: ir.RankedTensorType) -> ir.Value:
    """Build the bits of x as the type `result`. If x is itself such a reinterpretation, start from its source."""
    while not isinstance(x.owner, ir.Block) and x.owner.name in _BITS_KEPT:
        x = x.owner.operands[0]
    source = ir.RankedTensorType(x.type)
    width, target_width = _width(source.element_type), _width(result.element_type)
    if width < target_width:
        x = _reshaped(e, x, [*result.shape, target_width // width])
        return e.create("stablehlo.bitcast_convert", [x], result)
    split = [*source.shape, width // target_width] if width > target_width else source.shape
    if source.element_type != result.element_type:
        x = e.create("stablehlo.bitcast_convert", [x], ir.RankedTensorType.get(split, result.element_type))
    return _reshaped(e, x, result.shape)


def _width(kind: ir.Type) -> int:
    return ir.IntegerType(kind).width if isinstance(kind, ir.IntegerType) else ir.FloatType(kind).width


def _reshaped(e: Emission, x: ir.Value, shape: Sequence[int]) -> ir.Value:
    source = ir.RankedTensorType(x.type)
    if list(source.shape) == list(shape):
        return x
    return e.create("stablehlo.reshape", [x], ir.RankedTensorType.get(shape, source.element_type))


def _is_inverted(divisor: SSAValue) -> bool:
    """Whether XLA may recognize a divisor as a broadcast: it looks through all elementwise ops."""
    return isinstance(divisor.owner, Operation)


def _through(value: SSAValue, kinds: tuple[type[TensorOp], ...]) -> SSAValue:
    """Return the value that a chain of such ops begins with."""
    while isinstance(value.owner, kinds):
        value = value.owner.operands[0]
    return value
