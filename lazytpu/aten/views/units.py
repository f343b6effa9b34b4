"""Elements of one dtype as several elements of another, for views that change the dtype.

A complex number is (real, imaginary), a bool is a byte of 0 or 1, and everything else is its bits, lowest first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazytpu.ir.types import REAL_OF, bitwidth, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.views.steps import Shape
    from lazytpu.ir.builder import Builder


@dataclass(frozen=True)
class Units:
    """`dtype` as `ratio` elements of dtype `unit`."""

    dtype: str
    unit: str

    @property
    def ratio(self) -> int:
        return _bits(self.dtype) // _bits(self.unit)

    @property
    def tail(self) -> Shape:
        """The last dim, which `split` adds; empty if the ratio is 1."""
        return (self.ratio,) if self.ratio > 1 else ()

    def split(self, b: Builder, x: SSAValue) -> SSAValue:
        """`x` (shape, dtype) as (shape + tail, unit)."""
        shape, dtype = shape_of(x), self.dtype
        if dtype == "i1":
            x, dtype = b.convert(x, "ui8"), "ui8"
        elif dtype in REAL_OF:
            parts = [b.reshape(b.unary(part, x), (*shape, 1)) for part in ("real", "imag")]
            x, dtype = b.concatenate(parts, len(shape)), REAL_OF[dtype]
        return b.reshape(_bitcast(b, x, dtype, self.unit), shape + self.tail)

    def join(self, b: Builder, x: SSAValue) -> SSAValue:
        """The inverse of `split`."""
        shape = shape_of(x)[: -1 if self.tail else None]
        if self.dtype == "i1":
            byte = _bitcast(b, x, self.unit, "ui8")
            return b.compare("NE", byte, b.constant(0, "ui8", shape))
        if self.dtype not in REAL_OF:
            return _bitcast(b, x, self.unit, self.dtype)
        real = REAL_OF[self.dtype]
        pairs = b.reshape(x, (*shape, 2) if self.ratio == 2 else (*shape, 2, self.ratio // 2))
        pairs = _bitcast(b, pairs, self.unit, real)
        zeros = (0,) * len(shape)
        halves = [b.slice(pairs, (*zeros, i), (*shape, i + 1)) for i in (0, 1)]
        return b.binary("complex", *(b.reshape(half, shape) for half in halves))


def units(base: str, view: str) -> tuple[Units, Units]:
    """The splits of dtypes `base` and `view` into a common unit, the narrower of their parts."""
    inner, outer = _bits_dtype(base), _bits_dtype(view)
    unit = inner if bitwidth(inner) < bitwidth(outer) else outer
    return Units(base, unit), Units(view, unit)


def _bits_dtype(dtype: str) -> str:
    """A dtype that StableHLO can bitcast: the element's dtype, or a component's."""
    return "ui8" if dtype == "i1" else REAL_OF.get(dtype, dtype)


def _bits(dtype: str) -> int:
    return 2 * bitwidth(REAL_OF[dtype]) if dtype in REAL_OF else bitwidth(_bits_dtype(dtype))


def _bitcast(b: Builder, x: SSAValue, dtype: str, to: str) -> SSAValue:
    """`bitcast_convert`: a narrower dtype adds a last dim, a wider one removes it."""
    if dtype == to:
        return x
    shape, ratio = shape_of(x), bitwidth(dtype) / bitwidth(to)
    if ratio > 1:
        shape = (*shape, int(ratio))
    elif ratio < 1:
        shape = shape[:-1]
    return b.bitcast_convert(x, to, shape)
