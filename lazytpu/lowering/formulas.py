"""Formulas over tensors of one float dtype, written with Python's operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from lazytpu.lowering.emission import Emission
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo

FRACTION = {"f32": 23, "f64": 52}
"Bits of the fraction of a float."
EXPONENT = {"f32": 8, "f64": 11}
"Bits of the exponent of a float."


class Formula:
    """A tensor under construction: operators build elementwise ops, and numbers become constants of its shape."""

    def __init__(self, e: Emission, value: ir.Value, dtype: str):
        self.e, self.value, self.dtype = e, value, dtype

    def of(self, value: ir.Value) -> Formula:
        """A formula of the same dtype."""
        return Formula(self.e, value, self.dtype)

    def number(self, x: float | Formula) -> Formula:
        """x as a formula: itself, or a constant."""
        if isinstance(x, Formula):
            return x
        return self.of(self.e.constant(x, self.dtype, ir.RankedTensorType(self.value.type).shape))

    def _binary(self, name: str, left: Number, right: Number) -> Formula:
        return self.of(self.e.binary(name, self.number(left).value, self.number(right).value))

    def __add__(self, other: Number) -> Formula:
        return self._binary("add", self, other)

    def __radd__(self, other: Number) -> Formula:
        return self._binary("add", other, self)

    def __sub__(self, other: Number) -> Formula:
        return self._binary("subtract", self, other)

    def __rsub__(self, other: Number) -> Formula:
        return self._binary("subtract", other, self)

    def __mul__(self, other: Number) -> Formula:
        return self._binary("multiply", self, other)

    def __rmul__(self, other: Number) -> Formula:
        return self._binary("multiply", other, self)

    def __truediv__(self, other: Number) -> Formula:
        return self._binary("divide", self, other)

    def __rtruediv__(self, other: Number) -> Formula:
        return self._binary("divide", other, self)

    def __neg__(self) -> Formula:
        return self.of(hlo.negate(self.value))

    def __abs__(self) -> Formula:
        return self.of(hlo.abs(self.value))

    def __lt__(self, other: Number) -> ir.Value:
        return self.e.compare("LT", self.value, self.number(other).value, self.dtype)

    def __gt__(self, other: Number) -> ir.Value:
        return self.e.compare("GT", self.value, self.number(other).value, self.dtype)

    def where(self, condition: ir.Value, other: Number) -> Formula:
        """This formula where the condition holds, the other elsewhere."""
        return self.of(hlo.select(condition, self.value, self.number(other).value))

    def at_most(self, limit: float) -> Formula:
        """The lesser of this and a number; NaN stays."""
        return self.number(limit).where(self > limit, self)

    def at_least(self, limit: float) -> Formula:
        """The greater of this and a number; NaN stays."""
        return self.number(limit).where(self < limit, self)

    def signed_as(self, sign: Formula) -> Formula:
        """This formula, which is not negative, with the sign of another; -0.0 and NaN have one, too."""
        kind, shape = self._bits(), ir.RankedTensorType(self.value.type).shape
        signs = self.e.constant(-(2 ** (FRACTION[self.dtype] + EXPONENT[self.dtype])), kind, shape)
        bits, other = (self.e.create("stablehlo.bitcast_convert", [x.value], signs.type) for x in (self, sign))
        bits = self.e.binary("or", bits, self.e.binary("and", other, signs))
        return self.of(self.e.create("stablehlo.bitcast_convert", [bits], self.value.type))

    def _bits(self) -> str:
        """The integer dtype of the same width."""
        return f"i{FRACTION[self.dtype] + EXPONENT[self.dtype] + 1}"

    def rounded(self) -> Formula:
        """The nearest integer."""
        return self.of(hlo.round_nearest_even(self.value))

    def exp(self) -> Formula:
        return self.of(hlo.exponential(self.value))

    def log(self) -> Formula:
        return self.of(hlo.log(self.value))

    def sqrt(self) -> Formula:
        return self.of(hlo.sqrt(self.value))

    def sin(self) -> Formula:
        return self.of(hlo.sine(self.value))

    def cos(self) -> Formula:
        return self.of(hlo.cosine(self.value))

    def tan(self) -> Formula:
        return self.of(hlo.tan(self.value))

    def as_dtype(self, dtype: str) -> Formula:
        """Converted to another dtype."""
        return Formula(self.e, self.e.convert(self.value, dtype), dtype)

    def shortened(self) -> Formula:
        """Rounded to half the bits, so that its square is exact."""
        bits = (FRACTION[self.dtype] + 1) // 2 - 1
        return self.of(hlo.reduce_precision(self.value, EXPONENT[self.dtype], bits))

    def power_of_two(self) -> Formula:
        """2 to the power of this integer, which is the exponent of a normal number or one more: that is infinity."""
        fraction, exponent = FRACTION[self.dtype], EXPONENT[self.dtype]
        kind, shape = self._bits(), ir.RankedTensorType(self.value.type).shape
        biased = self.e.convert((self + (2.0 ** (exponent - 1) - 1)).value, kind)
        bits = self.e.binary("shift_left", biased, self.e.constant(fraction, kind, shape))
        return self.of(self.e.create("stablehlo.bitcast_convert", [bits], self.value.type))

    def polynomial(self, coefficients: Sequence[float]) -> Formula:
        """c[0] + c[1] x + c[2] x^2 + ..., by Horner's rule."""
        total = self.number(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = total * self + c
        return total


Number: TypeAlias = "Formula | float"
