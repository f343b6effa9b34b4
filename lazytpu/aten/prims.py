"""The `prims` ops, in which torch's decompositions and references end.

Most are an ATen op restricted to operands of one dtype and shape: a table says which. Rules for the others follow it.
Prims that return views (`prims.transpose`, `prims.split_dim`, …) need no rule, since views are read off their strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

from lazytpu.aten import dtypes
from lazytpu.aten.dims import reduced
from lazytpu.aten.dispatch import evaluate
from lazytpu.aten.pointwise.operands import wide
from lazytpu.aten.reductions.reduce import fold, total
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.aten.schema import bind
from lazytpu.aten.shape.casts import cast
from lazytpu.ir.types import dtype_of, is_integer, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.random.draws import Rng
    from lazytpu.ir.builder import Builder

aten = torch.ops.aten

# Prim -> the ATen overload that computes the same; arguments correspond by position.
SAME: dict[str, OpOverload] = {
    **{
        f"prims.{name}.default": getattr(aten, name).default
        for name in (
            *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "digamma", "erf"),
            *("erfc", "exp", "exp2", "expm1", "floor", "isfinite", "lgamma", "log", "log10", "log1p", "log2", "neg"),
            *("reciprocal", "round", "rsqrt", "sign", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
            *("bitwise_not", "atan2", "fmax", "fmin", "gcd", "hypot", "igamma", "igammac", "maximum", "minimum"),
            *("nextafter", "cat", "as_strided_scatter"),
        )
    },
    **{
        f"prims.{name}.default": getattr(aten, name).Tensor
        for name in (
            *("add", "sub", "mul", "fmod", "remainder", "eq", "ne", "lt", "le", "gt", "ge", "frexp"),
            *("bitwise_and", "bitwise_or", "bitwise_xor"),
        )
    },
    **{
        f"prims.{name}.default": getattr(aten, f"special_{name}").default
        for name in ("bessel_j0", "bessel_j1", "erfcx", "ndtri", "spherical_bessel_j0", "zeta")
    },
    "prims.bessel_i0.default": aten.i0.default,
    "prims.bessel_i0e.default": aten.special_i0e.default,
    "prims.bessel_i1.default": aten.special_i1.default,
    "prims.bessel_i1e.default": aten.special_i1e.default,
    "prims.conj_physical.default": aten._conj_physical.default,
    "prims.erf_inv.default": aten.erfinv.default,
    "prims.fill.default": aten.fill.Scalar,
    "prims.pow.default": aten.pow.Tensor_Tensor,
    "prims.rev.default": aten.flip.default,
    "prims.shift_left.default": aten.bitwise_left_shift.Tensor,
    "prims.shift_right_arithmetic.default": aten.bitwise_right_shift.Tensor,
    "prims.where.default": aten.where.self,
}


def same(op: OpOverload) -> Callable[..., Any]:
    """The rule that passes its arguments, in order, to the ATen op `op`."""

    def meaning(b: Builder, /, **arguments: Any) -> Any:
        evaluation = evaluate(b, op, bind(op, tuple(arguments.values()), {}), b.out)
        return evaluation.returns[0] if len(evaluation.returns) == 1 else tuple(evaluation.returns)

    return meaning


for _name, _op in SAME.items():
    rule(_name, numbers=("value",))(same(_op))


@rule("prims.cbrt.default")
def cbrt(b: Builder, self: SSAValue) -> SSAValue:
    """The real cube root."""
    dtype = dtype_of(self)
    return b.convert(b.unary("cbrt", b.convert(self, wide(dtype))), dtype)


@rule("prims.div.default")
def div(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    """The quotient; of integers, rounded toward zero."""
    if is_integer(dtype_of(self)):
        op = aten.div.Tensor_mode
        return evaluate(b, op, bind(op, (self, other), {"rounding_mode": "trunc"}), b.out).returns[0]
    return same(aten.div.Tensor)(b, self=self, other=other)


# -- the same elements


@rule("prims.clone.default", "prims.device_put.default", "prims.copy_strided.default")
def unchanged(b: Builder, **arguments: Any) -> SSAValue:
    """The first argument: values are immutable, and a program knows neither strides nor devices."""
    return next(iter(arguments.values()))


@rule("prims.convert_element_type.default")
def convert_element_type(b: Builder, a: SSAValue, dtype: torch.dtype) -> SSAValue:
    return cast(b, a, dtypes.name(dtype))


@rule("prims.copy_to.default")
def copy_to(b: Builder, /, a: SSAValue, **source: SSAValue) -> SSAValue:
    """The new value of `a`: the argument `b` in the dtype of `a`."""
    return b.broadcast_to(cast(b, source["b"], dtype_of(a)), shape_of(a))


@rule("prims.reshape.default", "prims.collapse.default")
def reshape(b: Builder, a: SSAValue, **shape: Any) -> SSAValue:
    """The elements of `a`, in row-major order, in another shape."""
    return b.reshape(a, b.out[0][1])


# -- new tensors


@rule("prims.iota.default")
def iota(b: Builder, length: int, start: int, step: int, **options: Any) -> SSAValue:
    """start + step i, for integers i < length; computed in i64."""
    index = b.iota("i64", (length,), 0)
    stride, origin = (b.constant(n, "i64", (length,)) for n in (step, start))
    return b.convert(b.add(b.mul(index, stride), origin), b.out[0][0])


@rule("prims.normal.default", numbers=("mean", "std"), random=True)
def normal(b: Builder, mean: Scalar, std: Scalar, *, rng: Rng, **options: Any) -> SSAValue:
    """mean + std z."""
    return _drawn(b, aten.normal_.default, mean, std, rng)


@rule("prims.uniform.default", numbers=("low", "high"), random=True)
def uniform(b: Builder, low: Scalar, high: Scalar, *, rng: Rng, **options: Any) -> SSAValue:
    """low + u (high - low), u in [0, 1)."""
    return _drawn(b, aten.uniform_.default, low, high, rng)


def _drawn(b: Builder, op: OpOverload, first: Scalar, second: Scalar, rng: Rng) -> SSAValue:
    """The value that the in-place random op `op` writes."""
    dtype, shape = b.out[0]
    evaluation = evaluate(b, op, bind(op, (b.constant(0, dtype, shape), first, second), {}), [], rng)
    return evaluation.writes["self"]


# -- reductions: over `dims`, or over all; the result has the dtype of the operand, or `output_dtype`


@rule("prims.sum.default")
def sum_(b: Builder, inp: SSAValue, dims: Sequence[int] | None, output_dtype: Any) -> SSAValue:
    return total(b, inp, dims, False, b.out[0][0])


@rule("prims.prod.default")
def prod(b: Builder, inp: SSAValue, dims: Sequence[int] | None, output_dtype: Any) -> SSAValue:
    to = b.out[0][0]
    return b.convert(fold(b, "mul", b.convert(cast(b, inp, to), wide(to)), dims, False), to)


@rule("prims.amax.default")
def amax(b: Builder, inp: SSAValue, dims: Sequence[int] | None, output_dtype: Any) -> SSAValue:
    """The largest element; NaN if there is one."""
    return cast(b, fold(b, "max", inp, dims, False), b.out[0][0])


@rule("prims.amin.default")
def amin(b: Builder, inp: SSAValue, dims: Sequence[int] | None, output_dtype: Any) -> SSAValue:
    """The smallest element; NaN if there is one."""
    return cast(b, fold(b, "min", inp, dims, False), b.out[0][0])


@rule("prims.var.default")
def var(b: Builder, inp: SSAValue, dims: Sequence[int] | None, correction: float, output_dtype: Any) -> SSAValue:
    """The variance, divided by n - correction in place of n."""
    op = aten.var.correction
    return evaluate(b, op, bind(op, (inp, dims), {"correction": Scalar("float", correction)}), b.out).returns[0]


@rule("prims.xor_sum.default")
def xor_sum(b: Builder, inp: SSAValue, dims: Sequence[int] | None, output_dtype: Any) -> SSAValue:
    """The exclusive or of the elements. The dialect has no such reduction: halves are combined in log2(n) steps."""
    dtype, shape = b.out[0]
    folded_dims = sorted(reduced(dims, len(shape_of(inp))))
    remaining = [d for d in range(len(shape_of(inp))) if d not in folded_dims]
    x = b.transpose(inp, [*folded_dims, *remaining])
    n = 1
    for d in folded_dims:
        n *= shape_of(inp)[d]
    x = b.reshape(x, [n, *shape])
    if n == 0:
        return b.constant(0, dtype, shape)
    while n > 1:
        half = n // 2
        first, second = (_rows(b, x, at, at + half) for at in (0, half))
        folded = b.binary("xor", first, second)
        x = b.concatenate([folded, _rows(b, x, 2 * half, n)], 0) if n % 2 else folded
        n = half + n % 2
    return b.convert(b.reshape(x, shape), dtype)


def _rows(b: Builder, x: SSAValue, start: int, limit: int) -> SSAValue:
    """x[start:limit] of the first dim."""
    row_shape = shape_of(x)[1:]
    return b.slice(x, [start, *(0 for _ in row_shape)], [limit, *row_shape])


# -- Fourier transforms: ATen's, without normalization


@rule("prims.fft_r2c.default")
def fft_r2c(b: Builder, self: SSAValue, dim: Sequence[int], onesided: bool) -> SSAValue:
    return same(aten._fft_r2c.default)(b, self=self, dim=dim, normalization=0, onesided=onesided)


@rule("prims.fft_c2c.default")
def fft_c2c(b: Builder, self: SSAValue, dim: Sequence[int], forward: bool) -> SSAValue:
    return same(aten._fft_c2c.default)(b, self=self, dim=dim, normalization=0, forward=forward)


@rule("prims.fft_c2r.default")
def fft_c2r(b: Builder, self: SSAValue, dim: Sequence[int], last_dim_size: int) -> SSAValue:
    return same(aten._fft_c2r.default)(b, self=self, dim=dim, normalization=0, last_dim_size=last_dim_size)
