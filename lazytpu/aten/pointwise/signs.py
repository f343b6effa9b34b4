"""Sign bits, which -0.0 and NaN have, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full
from lazytpu.ir.types import dtype_of, is_float, is_unsigned, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def signbit(b: Builder, x: SSAValue) -> SSAValue:
    """Whether the sign bit is set, as it is for -0.0 and negative NaNs.

    Read from x as f32: narrowing keeps the sign, and a TPU cannot access the bits of an f64.
    """
    if not is_float(dtype_of(x)):
        return full(b, False, b.convert(x, "i1")) if is_unsigned(dtype_of(x)) else b.compare("LT", x, full(b, 0, x))
    bits = b.bitcast_convert(b.convert(x, "f32"), "i32", shape_of(x))
    return b.compare("LT", bits, full(b, 0, bits))


def signed(b: Builder, x: SSAValue, negative: SSAValue) -> SSAValue:
    """|x|, or -|x| where `negative`."""
    size = b.abs(x)
    return b.select(negative, b.neg(size), size)
