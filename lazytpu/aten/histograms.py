"""Counts of elements in bins of equal width."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from lazytpu.aten.casts import cast
from lazytpu.aten.dispatch import evaluate
from lazytpu.aten.pointwise import full
from lazytpu.aten.registry import rule
from lazytpu.aten.schema import bind
from lazytpu.ir.types import dtype_of, is_float, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder


@rule("aten.histc.default", numbers=("min", "max"))
def histc(b: Builder, self: SSAValue, bins: int, min: Scalar, max: Scalar) -> SSAValue:
    """(bins,): how many elements lie in each of `bins` intervals of [min, max], the last closed.

    Equal bounds mean the least and greatest element; if these are equal too, one less and one more. What lies outside
    (and NaN) is not counted (`histogramdd_cpu_contiguous`, LINEAR_INTERPOLATION, in HistogramKernel.cpp).
    """
    dtype, n = dtype_of(self), prod(shape_of(self))
    x = b.reshape(self, [n])
    low, high = b.scalar(min, dtype), b.scalar(max, dtype)
    if n:
        found = b.compare("EQ", low, high)
        low, high = b.select(found, b.reduce("min", x, [0]), low), b.select(found, b.reduce("max", x, [0]), high)
    one, same = b.constant(1, dtype), b.compare("EQ", low, high)
    low, high = b.select(same, b.sub(low, one), low), b.select(same, b.add(high, one), high)
    first, last = b.broadcast_to(low, [n]), b.broadcast_to(high, [n])
    inside = b.and_(b.compare("GE", x, first), b.compare("LE", x, last))
    place = b.div(b.mul(b.sub(x, first), full(b, bins, x)), b.sub(last, first))
    place = cast(b, b.unary("floor", place) if is_float(dtype) else place, "i64")
    place = b.binary("min", place, full(b, bins - 1, place))
    place = b.select(inside, place, full(b, bins, place))  # one bin more, for what is outside
    op = torch.ops.aten.scatter_add.default
    counts = b.constant(0, "i64", (bins + 1,))
    given = bind(op, (counts, 0, place, b.constant(1, "i64", (n,))), {})
    counted = evaluate(b, op, given, [("i64", (bins + 1,))]).returns[0]
    return b.convert(b.slice(counted, [0], [bins]), dtype)
