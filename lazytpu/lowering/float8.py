"""Conversion of 8-bit floats to f32 and back, bit for bit as in torch (torch/headeronly/util/Float8_*.h). XLA's own
convert turns numbers that are too large for f8e4m3fn into NaN, where torch saturates, and has other bits for NaN.

Programs hold them as bits, ui8, and the arithmetic here is on ui32, so that it is the same on every platform.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo

if TYPE_CHECKING:
    from lazytpu.lowering.emission import Emission

_SIGN, _INFINITY = 0x80000000, 0x7F800000  # of f32
_QUIET, _SIGNALLING = 0x400000, 0x7F800001  # the bit of a quiet NaN, and torch's NaN of the unsigned formats


@dataclass(frozen=True)
class Format:
    """A format with a sign, an exponent with this bias, and this many bits of mantissa. `largest` are the bits of the
    largest finite number, `overflow` of larger ones, `nan` of NaN. Without `signed`, it has one NaN and one zero."""

    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    signed: bool = True


FORMATS = {
    "f8e4m3fn": Format(3, 7, 0x7E, overflow=0x7E, nan=0x7F),
    "f8e5m2": Format(2, 15, 0x7B, overflow=0x7C, nan=0x7F),
    "f8e4m3fnuz": Format(3, 8, 0x7F, overflow=0x80, nan=0x80, signed=False),
    "f8e5m2fnuz": Format(2, 16, 0x7F, overflow=0x80, nan=0x80, signed=False),
}
EXPONENT = "f8e8m0fnu"
"A format of an exponent alone: powers of two, and one NaN."


class _Bits:
    """Builds arithmetic on ui32 of one shape."""

    def __init__(self, e: Emission, like: ir.Value) -> None:
        self.e, self.shape = e, ir.RankedTensorType(like.type).shape

    def constant(self, value: int) -> ir.Value:
        return self.e.constant(value, "ui32", self.shape)

    def op(self, name: str, x: ir.Value, y: ir.Value | int) -> ir.Value:
        return self.e.binary(name, x, self.constant(y) if isinstance(y, int) else y)

    def compare(self, direction: str, x: ir.Value, y: int) -> ir.Value:
        return self.e.compare(direction, x, self.constant(y), "ui32")

    def select(self, pred: ir.Value, on_true: ir.Value | int, on_false: ir.Value) -> ir.Value:
        true_value = self.constant(on_true) if isinstance(on_true, int) else on_true
        return self.e.create("stablehlo.select", [pred, true_value, on_false], on_false.type)

    def bits(self, x: ir.Value, dtype: str) -> ir.Value:
        """The bits of x as `dtype`: from float to unsigned, or back."""
        return hlo.bitcast_convert(self.e.tensor(dtype, self.shape), x)

    def number(self, x: ir.Value, dtype: str) -> ir.Value:
        return self.e.create("stablehlo.convert", [x], self.e.tensor(dtype, self.shape))


def decode(e: Emission, x: ir.Value, dtype: str) -> ir.Value:
    """The number in f32 whose bits in `dtype` are x; exact."""
    b = _Bits(e, x)
    bits = b.number(x, "ui32")
    if dtype == EXPONENT:
        power = b.select(b.compare("EQ", bits, 0), _QUIET, b.op("shift_left", bits, 23))  # 0 is 2 ** -127
        return b.bits(b.select(b.compare("EQ", bits, 0xFF), _SIGNALLING, power), "f32")
    format = FORMATS[dtype]
    magnitude, sign = b.op("and", bits, 0x7F), b.op("shift_left", b.op("and", bits, 0x80), 24)
    rebias = (127 - format.bias) << 23
    normal = b.op("add", b.op("shift_left", magnitude, 23 - format.mantissa), rebias)
    least = e.constant(2.0 ** (1 - format.bias - format.mantissa), "f32", b.shape)
    tiny = b.bits(e.binary("multiply", b.number(magnitude, "f32"), least), "ui32")
    value = b.select(b.compare("LT", magnitude, 1 << format.mantissa), tiny, normal)
    if dtype == "f8e5m2":  # the only one with infinities, and three NaNs
        value = b.select(b.compare("GT", magnitude, format.largest), b.op("add", normal, rebias), value)
        value = b.select(b.compare("GT", magnitude, format.overflow), b.op("or", value, _QUIET), value)
    elif format.signed:
        value = b.select(b.compare("EQ", magnitude, format.nan), _INFINITY | 0x700000, value)
    value = b.op("or", value, sign)
    if not format.signed:
        value = b.select(b.compare("EQ", bits, format.nan), _SIGNALLING, value)
    return b.bits(value, "f32")


def encode(e: Emission, x: ir.Value, dtype: str) -> ir.Value:
    """The bits of x, an f32, in `dtype`; rounds to nearest even."""
    b = _Bits(e, x)
    bits = b.bits(x, "ui32")
    code = _power(b, bits) if dtype == EXPONENT else _rounded(b, bits, FORMATS[dtype])
    return b.number(code, "ui8")


def _rounded(b: _Bits, bits: ir.Value, format: Format) -> ir.Value:
    sign, shift = b.op("and", bits, _SIGN), 23 - format.mantissa
    magnitude = b.op("xor", bits, sign)
    odd = b.op("and", b.op("shift_right_logical", magnitude, shift), 1)
    half = (((format.bias - 127) << 23) + (1 << (shift - 1)) - 1) % (1 << 32)
    code = b.op("shift_right_logical", b.op("add", b.op("add", magnitude, half), odd), shift)
    # Subnormal numbers are rounded by adding a power of two whose last bit is the least number.
    power = (127 + 1 - format.bias + shift) << 23
    added = b.e.binary("add", b.bits(magnitude, "f32"), b.bits(b.constant(power), "f32"))
    tiny = b.op("subtract", b.bits(added, "ui32"), power)
    code = b.select(b.compare("LT", magnitude, (128 - format.bias) << 23), tiny, code)
    # Numbers that round above the largest are recognized by their code, those far beyond by their own bits.
    beyond = b.e.binary(
        "or",
        b.compare("GT", code, format.largest),
        b.compare("GE", magnitude, (((format.largest >> format.mantissa) + 128 - format.bias) << 23)),
    )
    code = b.select(beyond, format.overflow, code)
    code = b.select(b.compare("GT", magnitude, _INFINITY), format.nan, code)
    signed = b.op("or", code, b.op("shift_right_logical", sign, 24))
    return signed if format.signed else b.select(b.compare("EQ", code, 0), code, signed)


def _power(b: _Bits, bits: ir.Value) -> ir.Value:
    """The exponent, rounded up from one half on; the sign is dropped."""
    exponent = b.op("and", b.op("shift_right_logical", bits, 23), 0xFF)
    carries = b.e.binary("or", b.compare("NE", b.op("and", bits, _QUIET - 1), 0), b.compare("GT", exponent, 0))
    up = b.e.binary("and", b.compare("NE", b.op("and", bits, _QUIET), 0), carries)
    rounded = b.select(up, b.op("add", exponent, 1), exponent)
    return b.select(b.compare("EQ", exponent, 0xFF), exponent, rounded)
