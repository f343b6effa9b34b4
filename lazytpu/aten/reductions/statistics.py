"""Variance, standard deviation and norms."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from lazytpu.aten import dtypes
from lazytpu.aten.dims import along, reduced
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.reductions.reduce import count, fold, magnitude, squares, truth
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

Dims = int | Sequence[int] | None


def moments(b: Builder, x: SSAValue, dims: Sequence[int]) -> tuple[SSAValue, SSAValue]:
    """(mean, sum of squared differences from it) over `dims`, which are kept with size 1.

    Two passes, first the mean, then the squared differences, avoid cancellation: a one-pass variance of values near
    1000 loses six digits in f32.
    """
    n = count(x, list(dims)) if dims else 1
    folded = b.reduce("add", x, dims, keepdim=True)
    mean = b.div(folded, full(b, n, folded))
    centred = b.sub(x, along(b, mean, shape_of(x), list(dims)))
    return mean, b.reduce("add", squares(b, centred), dims, keepdim=True)


def exact_moments(b: Builder, x: SSAValue, dims: Sequence[int]) -> tuple[SSAValue, SSAValue]:
    """The same with sums in f64 for f32, as in the CPU's kernels.

    The mean of equal numbers is that number, and their variance 0: both are corrected by the mean of the differences
    from the rounded mean. The variance of a NaN or an infinity is NaN, and so is the mean then.
    """
    n = count(x, list(dims)) if dims else 1

    def mean_of(value: SSAValue) -> SSAValue:
        total = b.reduce("total", value, dims, keepdim=True)
        return b.div(total, full(b, n, total))

    def centred(value: SSAValue, mean: SSAValue) -> SSAValue:
        return b.sub(value, along(b, mean, shape_of(x), list(dims)))

    mean = mean_of(x)
    differences = centred(x, mean)
    error = mean_of(differences)
    squared = b.reduce("total", squares(b, centred(differences, error)), dims, keepdim=True)
    varies = b.compare("GT", squared, full(b, 0, squared))
    return b.select(varies, mean, b.add(mean, error)), squared


def _unit(b: Builder, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    """The power of two at or below the largest magnitude over `dims`, kept with size 1, between 2^-100 and 2^100.
    Numbers divided by it have squares that f32 can hold, and are rounded as before."""
    largest = b.reduce("max", b.unary("abs", x), dims, keepdim=True)
    largest = b.min(b.max(largest, full(b, 2.0**-100, largest)), full(b, 2.0**100, largest))
    bits = b.bitcast_convert(largest, "i32")
    return b.bitcast_convert(b.and_(bits, full(b, 0x7F800000, bits)), "f32")


class Spread(NamedTuple):
    """The variance and mean of x in units of `unit`, a power of two; None is 1."""

    scaled_variance: SSAValue
    scaled_mean: SSAValue
    unit: SSAValue | None

    def variance(self, b: Builder) -> SSAValue:
        return self._times(b, self._times(b, self.scaled_variance))

    def deviation(self, b: Builder) -> SSAValue:
        return self._times(b, b.sqrt(self.scaled_variance))

    def mean(self, b: Builder) -> SSAValue:
        return self._times(b, self.scaled_mean)

    def _times(self, b: Builder, x: SSAValue) -> SSAValue:
        return x if self.unit is None else b.mul(x, self.unit)


def _spread(b: Builder, x: SSAValue, dim: Dims, correction: Scalar | float, keepdim: bool) -> Spread:
    """The variance and mean, with `correction` subtracted from the count. If that leaves 0 or less, the division is by
    zero, as on the CPU. Squares of real f32 neither overflow nor vanish: the CPU computes them in f64."""
    dims = reduced(dim, len(shape_of(x)))
    computed, unit = b.convert(x, wide(dtype_of(x))), None
    if dtype_of(x) in ("f32", "bf16"):
        unit = _unit(b, computed, dims)
        inverse = b.div(full(b, 1.0, unit), unit)
        computed = b.mul(computed, along(b, inverse, shape_of(x), list(dims)))
    mean, squared = exact_moments(b, computed, dims)
    variance = b.div(squared, _left(b, count(x, dim), correction, squared))
    shape = shape_of(mean) if keepdim else [n for d, n in enumerate(shape_of(mean)) if d not in dims]
    return Spread(b.reshape(variance, shape), b.reshape(mean, shape), unit and b.reshape(unit, shape))


def _left(b: Builder, size: int, correction: Scalar | float, like: SSAValue) -> SSAValue:
    """max(0, size - correction), rounded to the dtype of `like` once; 0 for no elements, which have no mean."""
    if (isinstance(correction, Scalar) or correction < 0) and size == 0:
        return full(b, 0.0, like)
    if not isinstance(correction, Scalar):
        left = full(b, size - (int(correction) if correction == int(correction) else correction), like)
        return left if correction <= 0 else b.max(left, full(b, 0.0, like))  # in the program: the size may vary
    divisor = b.max(b.constant(0.0, "f64"), b.sub(b.constant(size, "f64"), b.scalar(correction, "f64")))
    return b.broadcast_to(b.convert(divisor, dtype_of(like)), shape_of(like))


def _given(correction: Scalar | bool | None) -> Scalar | float:
    """The correction, 1 by default. `unbiased` of the older overloads is a correction of 1 or 0."""
    if correction is None:
        return 1
    if not isinstance(correction, Scalar):
        return int(correction)
    return correction if correction.plan is not None else correction.value


@rule("aten.var.correction", specialized=("correction",))
def var(
    b: Builder, self: SSAValue, dim: Dims = None, correction: Scalar | None = None, keepdim: bool = False
) -> SSAValue:
    """Σ|x - mean|² / max(0, n - correction)."""
    return b.convert(_spread(b, self, dim, _given(correction), keepdim).variance(b), b.out[0][0])


@rule("aten.std.correction", specialized=("correction",))
def std(
    b: Builder, self: SSAValue, dim: Dims = None, correction: Scalar | None = None, keepdim: bool = False
) -> SSAValue:
    """The square root of `var`."""
    return b.convert(_spread(b, self, dim, _given(correction), keepdim).deviation(b), b.out[0][0])


@rule("aten.var_mean.correction", specialized=("correction",))
def var_mean(
    b: Builder, self: SSAValue, dim: Dims = None, correction: Scalar | None = None, keepdim: bool = False
) -> tuple[SSAValue, SSAValue]:
    """(variance, mean)."""
    spread = _spread(b, self, dim, _given(correction), keepdim)
    return b.convert(spread.variance(b), b.out[0][0]), b.convert(spread.mean(b), b.out[1][0])


@rule("aten.std_mean.correction", specialized=("correction",))
def std_mean(
    b: Builder, self: SSAValue, dim: Dims = None, correction: Scalar | None = None, keepdim: bool = False
) -> tuple[SSAValue, SSAValue]:
    """(standard deviation, mean)."""
    spread = _spread(b, self, dim, _given(correction), keepdim)
    return b.convert(spread.deviation(b), b.out[0][0]), b.convert(spread.mean(b), b.out[1][0])


@rule("aten.var.default")
def var_all(b: Builder, self: SSAValue, unbiased: bool = True) -> SSAValue:
    return b.convert(_spread(b, self, None, _given(unbiased), False).variance(b), b.out[0][0])


@rule("aten.var.dim")
def var_dim(b: Builder, self: SSAValue, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> SSAValue:
    return b.convert(_spread(b, self, dim, _given(unbiased), keepdim).variance(b), b.out[0][0])


def norm(b: Builder, x: SSAValue, order: float, dim: Dims, keepdim: bool) -> SSAValue:
    """(Σ|x|^order)^(1/order), with the limits of `torch.linalg.vector_norm` at 0, inf and -inf; real."""
    if order == inf:
        return fold(b, "max", magnitude(b, x), dim, keepdim)
    if order == -inf:
        return fold(b, "min", magnitude(b, x), dim, keepdim)
    if order == 0:
        real = dtypes.name(dtypes.torch_dtype(dtype_of(x)).to_real())
        return fold(b, "add", b.convert(truth(b, x), real), dim, keepdim)
    if order == 1:
        return fold(b, "add", magnitude(b, x), dim, keepdim)
    if order == 2:
        return b.sqrt(fold(b, "add", squares(b, x), dim, keepdim))
    size = magnitude(b, x)
    if count(x, dim) == 1:  # norms of single numbers, whose power might overflow
        return fold(b, "add", size, dim, keepdim)
    folded = fold(b, "add", b.binary("pow", size, full(b, order, size)), dim, keepdim)
    return b.binary("pow", folded, full(b, 1 / order, folded))


# Orders whose norm has a special formula.
SPECIAL = (inf, -inf, 0, 1, 2)


def _varying_norm(b: Builder, x: SSAValue, order: Scalar, dim: Dims, keepdim: bool) -> SSAValue:
    """The norm of a run-time order: the program has all formulas and selects by the number."""
    size, exponent = magnitude(b, x), b.scalar(order, "f64")
    if count(x, dim) == 1:
        one, zeroth = fold(b, "add", size, dim, keepdim), b.compare("EQ", exponent, b.constant(0.0, "f64"))
        return b.select(zeroth, norm(b, x, 0, dim, keepdim), one)
    power = b.broadcast_to(b.convert(exponent, dtype_of(size)), shape_of(size))
    folded = fold(b, "add", b.binary("pow", size, power), dim, keepdim)
    root = b.convert(b.div(b.constant(1.0, "f64"), exponent), dtype_of(folded))
    result = b.binary("pow", folded, b.broadcast_to(root, shape_of(folded)))
    for special in SPECIAL:
        chosen = b.compare("EQ", exponent, b.constant(special, "f64"))
        result = b.select(chosen, norm(b, x, special, dim, keepdim), result)
    return result


@rule("aten.linalg_vector_norm.default", specialized=("ord",))
def linalg_vector_norm(
    b: Builder, self: SSAValue, ord: Scalar, dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> SSAValue:
    """The vector norm of `self` converted to `dtype`. f16 and bf16 are accumulated in f32."""
    if dtype is not None:
        self = b.convert(self, dtypes.name(dtype))
    if not is_complex(dtype_of(self)):
        self = b.convert(self, wide(dtype_of(self)))
    varies = ord.plan is not None
    result = _varying_norm(b, self, ord, dim, keepdim) if varies else norm(b, self, float(ord.value), dim, keepdim)
    return b.convert(result, b.out[0][0])
