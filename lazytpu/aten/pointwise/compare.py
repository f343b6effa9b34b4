"""Comparisons, logic and selection: eq … ge, logical_*, where, masked_fill, maximum, clamp, isnan and the like."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from lazytpu.aten.pointwise.operands import (
    Operand,
    computable,
    finish,
    full,
    operands,
    pointwise,
    result_type,
    within_dtype,
)
from lazytpu.aten.pointwise.signs import signbit
from lazytpu.aten.promotion import promote
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_complex, is_float

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder


def is_nan(b: Builder, x: SSAValue) -> SSAValue:
    """Whether x (or a part of a complex x) is NaN."""
    dtype = dtype_of(x)
    return b.compare("NE", x, x) if is_float(dtype) or is_complex(dtype) else full(b, False, b.convert(x, "i1"))


def truth(b: Builder, x: SSAValue) -> SSAValue:
    """x != 0, torch's conversion to bool: NaN is true."""
    return x if dtype_of(x) == "i1" else b.compare("NE", x, full(b, 0, x))


def _comparison(direction: str) -> None:
    packet = f"aten.{direction.lower()}"

    @pointwise(f"{packet}.Tensor", f"{packet}.Scalar", halves="own")
    def compare(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
        return b.compare(direction, self, other)


for _direction in ("EQ", "NE", "LT", "LE", "GT", "GE"):
    _comparison(_direction)


@rule("aten.logical_not.default")
def logical_not(b: Builder, self: SSAValue) -> SSAValue:
    """self == 0."""
    return finish(b, b.not_(truth(b, self)))


def _logic(name: str, op: str) -> None:
    @rule(f"aten.{name}.default", numbers=("self", "other"))
    def connective(b: Builder, self: Operand, other: Operand) -> SSAValue:
        x, y = operands(b, self, other, common=result_type(self, other), halves="own")
        return finish(b, b.binary(op, truth(b, x), truth(b, y)))


_logic("logical_and", "and")
_logic("logical_or", "or")
_logic("logical_xor", "xor")


@rule("aten.isnan.default")
def isnan(b: Builder, self: SSAValue) -> SSAValue:
    """Where self is NaN."""
    return is_nan(b, computable(b, self))


def _infinite(b: Builder, x: SSAValue, bound: float) -> SSAValue:
    if not is_float(dtype_of(x)):
        return full(b, False, b.convert(x, "i1"))
    x = computable(b, x)
    return b.compare("EQ", b.abs(x) if bound > 0 else x, full(b, bound, x))


@rule("aten.isinf.default")
def isinf(b: Builder, self: SSAValue) -> SSAValue:
    """Where self, or a part of a complex self, is infinite."""
    if is_complex(dtype_of(self)):
        return b.or_(*(_infinite(b, b.unary(part, self), math.inf) for part in ("real", "imag")))
    return _infinite(b, self, math.inf)


@rule("aten.isposinf.default")
def isposinf(b: Builder, self: SSAValue) -> SSAValue:
    """Where self is inf."""
    if not is_float(dtype_of(self)):
        return full(b, False, b.convert(self, "i1"))
    x = computable(b, self)
    return b.compare("EQ", x, full(b, math.inf, x))


@rule("aten.isneginf.default")
def isneginf(b: Builder, self: SSAValue) -> SSAValue:
    """Where self is -inf."""
    return _infinite(b, self, -math.inf)


@rule("aten.where.self", numbers=("self", "other"))
def where(b: Builder, condition: SSAValue, self: Operand, other: Operand) -> SSAValue:
    """self where the condition is true, else other, in their promoted dtype."""
    shape = b.out[0][1]
    (pred,) = promote(b, truth(b, condition), to="i1", shape=shape)
    x, y = promote(b, self, other, to=result_type(self, other), shape=shape)
    return finish(b, b.select(pred, x, y))


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor", specialized=("value",))
def masked_fill(b: Builder, self: SSAValue, mask: SSAValue, value: Operand) -> SSAValue:
    """value (in self's dtype) where the mask is true, else self."""
    dtype, shape = b.out[0]
    (pred,) = promote(b, truth(b, mask), to="i1", shape=shape)
    x, y = promote(b, value, self, to=dtype, shape=shape)
    return b.select(pred, x, y)


@pointwise("aten.maximum.default", halves="own")
def maximum(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """The greater; NaN where either is NaN."""
    return b.or_(self, other) if dtype_of(self) == "i1" else b.max(self, other)


@pointwise("aten.minimum.default", halves="own")
def minimum(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """The lesser; NaN where either is NaN."""
    return b.and_(self, other) if dtype_of(self) == "i1" else b.min(self, other)


def _beside_nan(b: Builder, x: SSAValue, y: SSAValue, extreme: SSAValue) -> SSAValue:
    if not is_float(dtype_of(x)):
        return extreme
    return b.select(is_nan(b, x), y, b.select(is_nan(b, y), x, extreme))


@pointwise("aten.fmax.default", halves="own")
def fmax(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """The greater; NaN only where both are NaN."""
    return _beside_nan(b, self, other, maximum(b, self, other))


@pointwise("aten.fmin.default", halves="own")
def fmin(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """The lesser; NaN only where both are NaN."""
    return _beside_nan(b, self, other, minimum(b, self, other))


@rule("aten.clamp.default", "aten.clamp.Tensor", numbers=("self", "min", "max"))
def clamp(b: Builder, self: Operand, min: Operand | None, max: Operand | None) -> SSAValue:
    """min(max(self, min), max): `max` wins where the bounds cross, and NaN in any operand gives NaN."""
    common = result_type(self, min, max)
    bounds = [within_dtype(b, x, common) for x in (min, max) if x is not None]
    result, *limits = operands(b, self, *bounds, common=common, halves="own")
    if min is not None:
        result = b.max(result, limits[0])
    if max is not None:
        result = b.min(result, limits[-1])
    return finish(b, result)


@rule("aten.clamp_min.default", "aten.clamp_min.Tensor", numbers=("self", "min"))
def clamp_min(b: Builder, self: Operand, min: Operand) -> SSAValue:
    """The greater of self and min."""
    return clamp(b, self, min, None)


@rule("aten.clamp_max.default", "aten.clamp_max.Tensor", numbers=("self", "max"))
def clamp_max(b: Builder, self: Operand, max: Operand) -> SSAValue:
    """The lesser of self and max."""
    return clamp(b, self, None, max)


@pointwise("aten.heaviside.default", halves="own")
def heaviside(b: Builder, self: SSAValue, values: SSAValue) -> SSAValue:
    """0 below 0 and for NaN, 1 above, `values` at 0."""
    zero = full(b, 0, self)
    step = b.convert(b.compare("GT", self, zero), dtype_of(self))
    return b.select(b.compare("EQ", self, zero), values, step)


@pointwise("aten.copysign.Tensor", "aten.copysign.Scalar", floating=True, halves="own")
def copysign(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """|self| with the sign bit of other."""
    differ = b.binary("xor", signbit(b, self), signbit(b, other))
    return b.select(differ, b.neg(self), self)


@pointwise("aten.nextafter.default", halves="own")
def nextafter(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """The floating-point number after self in the direction of other."""
    return b.binary("next_after", self, other)
