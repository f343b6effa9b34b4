"""Sort keys: an i64 that holds an element in its upper half and its index in the lower.

The keys sort in the stable order of the elements, with NaN the largest and -0.0 equal to 0.0. The lowest bit is the
sign of a zero, so that the elements can be recovered from the keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.reductions.reduce import is_nan
from lazytpu.ir.types import bitwidth, dtype_of, is_complex, is_float, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

NAN = 0x7FFFFFFF  # above the image of infinity, 0x7F800000
MAGNITUDE = 0x7FFFFFFF  # all bits but the sign
SIGN = -(1 << 31)  # the sign bit alone


def sortable(dtype: str) -> bool:
    """Whether elements of `dtype` fit into a key."""
    return not is_complex(dtype) and bitwidth(dtype) <= 32


def _mirrored(b: Builder, bits: SSAValue) -> SSAValue:
    """The bits of an f32 as an i32 of the same order, and back: the bits of negative numbers are flipped."""
    flipped = b.binary("xor", bits, full(b, MAGNITUDE, bits))
    return b.select(b.compare("LT", bits, full(b, 0, bits)), flipped, bits)


def key_of(b: Builder, x: SSAValue, dim: int, descending: bool) -> SSAValue:
    """The keys (i64) of the elements of `x`, indexed along `dim`."""
    dtype, shape = dtype_of(x), shape_of(x)
    negative = None
    if is_float(dtype):
        x = b.convert(x, "f32")
        zero = b.compare("EQ", x, full(b, 0, x))
        raw = b.bitcast_convert(x, "i32")
        negative = b.and_(zero, b.compare("NE", raw, full(b, 0, raw)))
        bits = b.select(zero, full(b, 0, raw), _mirrored(b, raw))
        bits = b.select(is_nan(b, x), full(b, NAN, bits), bits)
    elif dtype == "ui32":
        bits = b.bitcast_convert(x, "i32")
        bits = b.binary("xor", bits, full(b, SIGN, bits))
    else:
        bits = b.convert(x, "i32")
    bits = b.convert(b.not_(bits) if descending else bits, "i64")
    high = b.binary("shift_left", bits, full(b, 32, bits))
    index = b.iota("i64", shape, dim)
    low = b.add(index, index)
    if negative is not None:
        low = b.or_(low, b.convert(negative, "i64"))
    return b.or_(high, low)


def value_of(b: Builder, keys: SSAValue, dtype: str, descending: bool) -> tuple[SSAValue, SSAValue]:
    """The inverse of `key_of`: (elements of `dtype`, i64 indices)."""
    low = b.and_(keys, full(b, 0xFFFFFFFF, keys))
    indices = b.binary("shift_right_logical", low, full(b, 1, low))
    bits = b.convert(b.binary("shift_right_arithmetic", keys, full(b, 32, keys)), "i32")
    bits = b.not_(bits) if descending else bits
    if dtype == "ui32":
        return b.bitcast_convert(b.binary("xor", bits, full(b, SIGN, bits)), "ui32"), indices
    if not is_float(dtype):
        return b.convert(bits, dtype), indices
    zero = b.compare("EQ", bits, full(b, 0, bits))
    sign = b.binary("shift_left", b.convert(low, "i32"), full(b, 31, bits))
    bits = b.select(zero, sign, _mirrored(b, bits))
    return b.convert(b.bitcast_convert(bits, "f32"), dtype), indices
