"""Complex numbers: conjugate, angle, and conversion from and to pairs of real numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import REAL_OF, full, pointwise
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def conjugate(b: Builder, x: SSAValue) -> SSAValue:
    """The conjugate of a complex number; a real number unchanged."""
    if dtype_of(x) not in REAL_OF:
        return x
    return b.binary("complex", b.unary("real", x), b.neg(b.unary("imag", x)))


@rule("aten.conj_physical.default", "aten._conj_physical.default", "aten._conj_copy.default", "aten._conj.default")
def conj(b: Builder, self: SSAValue) -> SSAValue:
    """The conjugate."""
    return conjugate(b, self)


@rule("aten._neg_view_copy.default")
def neg_view_copy(b: Builder, self: SSAValue) -> SSAValue:
    """-self."""
    return b.neg(self)


@pointwise("aten.angle.default", floating=True)
def angle(b: Builder, self: SSAValue) -> SSAValue:
    """The argument of a complex number; for a real one, 0 or pi, or NaN for NaN."""
    if dtype_of(self) in REAL_OF:
        return b.binary("atan2", b.unary("imag", self), b.unary("real", self))
    zero = full(b, 0, self)
    result = b.select(b.compare("LT", self, zero), full(b, math.pi, self), zero)
    return b.select(b.compare("NE", self, self), self, result)


@rule("aten.complex.default")
def complex_from_parts(b: Builder, real: SSAValue, imag: SSAValue) -> SSAValue:
    """real + imag i."""
    shape = b.out[0][1]
    return b.binary("complex", *_wide(b, b.broadcast_to(real, shape), b.broadcast_to(imag, shape)))


@rule("aten.polar.default")
def polar(b: Builder, abs: SSAValue, angle: SSAValue) -> SSAValue:
    """abs (cos angle + i sin angle)."""
    shape = b.out[0][1]
    radius, phase = _wide(b, b.broadcast_to(abs, shape), b.broadcast_to(angle, shape))
    return b.binary("complex", b.mul(radius, b.unary("cos", phase)), b.mul(radius, b.unary("sin", phase)))


def _wide(b: Builder, *parts: SSAValue) -> tuple[SSAValue, ...]:
    """`parts` in f32 or f64, as parts of a complex number must be."""
    return tuple(b.convert(p, "f64" if dtype_of(p) == "f64" else "f32") for p in parts)


@rule("aten.view_as_real_copy.default")
def view_as_real_copy(b: Builder, self: SSAValue) -> SSAValue:
    """[..., 2]: the real and the imaginary parts."""
    shape = shape_of(self)
    parts = [b.reshape(b.unary(part, self), (*shape, 1)) for part in ("real", "imag")]
    return b.concatenate(parts, len(shape))


@rule("aten.view_as_complex_copy.default")
def view_as_complex_copy(b: Builder, self: SSAValue) -> SSAValue:
    """Complex numbers from [..., 2]."""
    *shape, _ = shape_of(self)
    starts = [0] * len(shape)
    real = b.slice(self, (*starts, 0), (*shape, 1))
    imag = b.slice(self, (*starts, 1), (*shape, 2))
    return b.binary("complex", *(b.reshape(part, shape) for part in (real, imag)))
