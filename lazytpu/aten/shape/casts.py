"""Copies: to another dtype, into another tensor's shape, and fills."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from xdsl.ir import SSAValue

from lazytpu.aten import dtypes
from lazytpu.aten.pointwise.operands import HALVES, Operand, number
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import FLOATS8, dtype_of, is_complex, is_float, is_integer, shape_of

if TYPE_CHECKING:
    import torch

    from lazytpu.ir.builder import Builder


def cast(b: Builder, x: SSAValue, dtype: str) -> SSAValue:
    """`x` converted to `dtype` as `c10::convert` does on the CPU.

    A float to a narrow integer goes through a wide one and wraps around (300.0 is 44 as uint8, -1.0 is 255), where the
    dialect's convert would saturate. Doubles and integers become halves through f32; conversions of 8-bit floats, from
    and to any dtype, go through f32 too. A complex number drops its imaginary part. Anything but 0 is true.
    What C++ leaves undefined (NaN or infinity to an integer, a float beyond 2^31 to a narrow one) is what x86 gives.
    """
    source = dtype_of(x)
    if source == dtype:
        return x
    if source in FLOATS8:
        return cast(b, b.convert(x, "f32"), dtype)
    if dtype == "i1":
        return b.compare("NE", x, b.constant(0, *_like(x)))
    if is_complex(source) and not is_complex(dtype):
        return cast(b, b.unary("real", x), dtype)
    if is_float(source) and is_integer(dtype):
        return _to_integer(b, x, dtype)
    if dtype in FLOATS8 or (dtype in HALVES and (source == "f64" or is_integer(source))):
        x = b.convert(x, "f32")
    return b.convert(x, dtype)


def _like(x: SSAValue) -> tuple[str, tuple[int, ...]]:
    return dtype_of(x), shape_of(x)


def _to_integer(b: Builder, x: SSAValue, dtype: str) -> SSAValue:
    """By the registers that torch's kernels use on x86: of 64 bits for i64, ui32 and ui8, else of 32."""
    by_64 = dtype in ("i64", "ui64", "ui32") or (dtype == "ui8" and dtype_of(x) == "f64")
    signed = b.convert(_truncated(b, x, "i64" if by_64 else "i32"), dtype)
    if dtype != "ui64":
        return signed
    # From 2^63 on, the upper half of ui64; from 2^64 on, 0.
    upper = b.select(_below(b, x, 64), b.convert(x, dtype), b.constant(0, dtype, shape_of(x)))
    return b.select(b.compare("GE", x, b.constant(_power(x, 63), *_like(x))), upper, signed)


def _truncated(b: Builder, x: SSAValue, dtype: str) -> SSAValue:
    """As x86's cvttss2si: the least integer for what does not fit, NaN included. The dialect's convert saturates."""
    bits = 64 if dtype == "i64" else 32
    return b.select(_below(b, x, bits - 1), b.convert(x, dtype), b.constant(-(1 << (bits - 1)), dtype, shape_of(x)))


def _below(b: Builder, x: SSAValue, exponent: int) -> SSAValue:
    return b.compare("LT", x, b.constant(_power(x, exponent), *_like(x)))


def _power(x: SSAValue, exponent: int) -> float:
    """2^exponent in the dtype of x: infinite in f16."""
    return inf if dtype_of(x) == "f16" else 2.0**exponent


@rule("aten._to_copy.default")
def to_copy(b: Builder, self: SSAValue, dtype: torch.dtype | None, **placement: Any) -> SSAValue:
    """self in another dtype. Layout, device and memory format mean nothing to a program."""
    return self if dtype is None else cast(b, self, dtypes.name(dtype))


@rule("aten.clone.default")
def clone(b: Builder, self: SSAValue, memory_format: Any) -> SSAValue:
    """self: values are immutable."""
    return self


@rule(
    "aten.alias.default",
    "aten.alias_copy.default",
    "aten.detach.default",
    "aten.detach_copy.default",
    "aten.lift.default",
    "aten.lift_fresh.default",
    "aten.lift_fresh_copy.default",
)
def same(b: Builder, self: SSAValue) -> SSAValue:
    """self: values are immutable."""
    return self


@rule("aten.copy.default", numbers=("src",))
def copy(b: Builder, self: SSAValue, src: Operand, non_blocking: bool) -> SSAValue:
    """src with the dtype and shape of self."""
    dtype, shape = _like(self)
    value = number(b, src, dtype) if isinstance(src, Scalar) else cast(b, src, dtype)
    return b.broadcast_to(value, shape)


@rule("aten.fill.Scalar", "aten.fill.Tensor", numbers=("value",))
def fill(b: Builder, self: SSAValue, value: Operand) -> SSAValue:
    """A tensor like self with all elements `value` (0-d)."""
    return copy(b, self, value, False)
