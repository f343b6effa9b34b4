"""Layer, group and RMS normalization, forward and backward.

f16 and bf16 are computed in f32. Variances take two passes (`reductions.statistics.moments`). Backward rules recompute
x̂ = (x - mean)·rstd from the values that the forward op saved. With g the gradient of the output times the weight,
∂x = rstd·(g - mean(g) - x̂·mean(g·x̂)), where means are over the elements of one statistic
(https://arxiv.org/abs/1607.06450, https://arxiv.org/abs/1803.08494).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.dims import along
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.reductions.statistics import moments
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder

Gradients = tuple["SSAValue | None", "SSAValue | None", "SSAValue | None"]


def inverse_deviation(b: Builder, variance: SSAValue, eps: Scalar | float) -> SSAValue:
    """1 / sqrt(variance + eps)."""
    return b.rsqrt(b.add(variance, full(b, eps, variance)))


def average(b: Builder, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    """Means over `dims`, broadcast to the shape of `x`."""
    folded = b.reduce("add", x, dims)
    size = prod(shape_of(x)[d] for d in dims)
    return along(b, b.div(folded, full(b, size, folded)), shape_of(x), dims)


def normalized_gradient(b: Builder, g: SSAValue, normal: SSAValue, rstd: SSAValue, dims: Sequence[int]) -> SSAValue:
    """rstd·(g - mean(g) - x̂·mean(g·x̂)); all operands have one shape."""
    centred = b.sub(g, average(b, g, dims))
    return b.mul(rstd, b.sub(centred, b.mul(normal, average(b, b.mul(g, normal), dims))))


def standardized(
    b: Builder, x: SSAValue, dims: Sequence[int], eps: Scalar | float
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """((x - mean)·rstd, mean, rstd) over `dims`, which have size 1 in the statistics."""
    shape, size = shape_of(x), prod(shape_of(x)[d] for d in dims)
    mean, squared = moments(b, x, dims)
    rstd = inverse_deviation(b, b.div(squared, full(b, size, squared)), eps)
    return b.mul(b.sub(x, along(b, mean, shape, dims)), along(b, rstd, shape, dims)), mean, rstd


def scaled(b: Builder, x: SSAValue, weight: SSAValue | None, bias: SSAValue | None, dims: Sequence[int]) -> SSAValue:
    """x·weight + bias, both broadcast from `dims` of x."""
    for kind, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            spread = b.broadcast_in_dim(b.convert(parameter, dtype_of(x)), shape_of(x), dims)
            x = b.binary(kind, x, spread)
    return x


def stored(b: Builder, statistic: SSAValue, result: int) -> SSAValue:
    """A statistic in the dtype and shape of the op's result at index `result`."""
    dtype, shape = b.out[result]
    return b.convert(b.reshape(statistic, shape), dtype)


@rule("aten.native_layer_norm.default", specialized=("eps",))
def native_layer_norm(
    b: Builder,
    input: SSAValue,
    normalized_shape: Sequence[int],
    weight: SSAValue | None,
    bias: SSAValue | None,
    eps: Scalar | float,
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(output, mean, rstd) over the last dims."""
    rank = len(shape_of(input))
    dims = range(rank - len(normalized_shape), rank)
    normal, mean, rstd = standardized(b, b.convert(input, wide(dtype_of(input))), dims, eps)
    output = b.convert(scaled(b, normal, weight, bias, dims), dtype_of(input))
    return output, stored(b, mean, 1), stored(b, rstd, 2)


@rule("aten.native_layer_norm_backward.default")
def native_layer_norm_backward(
    b: Builder,
    grad_out: SSAValue,
    input: SSAValue,
    normalized_shape: Sequence[int],
    mean: SSAValue,
    rstd: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    output_mask: Sequence[bool],
) -> Gradients:
    """Gradients of (input, weight, bias)."""
    dtype, shape = wide(dtype_of(input)), shape_of(input)
    dims = range(len(shape) - len(normalized_shape), len(shape))
    x, g = b.convert(input, dtype), b.convert(grad_out, dtype)
    rstd = along(b, b.convert(rstd, dtype), shape, dims)
    normal = b.mul(b.sub(x, along(b, b.convert(mean, dtype), shape, dims)), rstd)
    of_input = None
    if output_mask[0]:
        of_output = scaled(b, g, weight, None, dims)
        of_input = b.convert(normalized_gradient(b, of_output, normal, rstd, dims), dtype_of(input))
    return of_input, *_parameter_gradients(b, g, normal, weight, bias, range(dims.start), output_mask)


def _parameter_gradients(
    b: Builder,
    g: SSAValue,
    normal: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    dims: Sequence[int],
    output_mask: Sequence[bool],
) -> tuple[SSAValue | None, SSAValue | None]:
    """(Σ g·x̂, Σ g) over `dims`, in the parameters' dtypes."""
    of_weight = of_bias = None
    if output_mask[1] and weight is not None:
        of_weight = b.convert(b.reduce("add", b.mul(g, normal), dims), dtype_of(weight))
    if output_mask[2]:
        like = bias if bias is not None else weight
        of_bias = b.convert(b.reduce("add", g, dims), dtype_of(g) if like is None else dtype_of(like))
    return of_weight, of_bias


@rule("aten.native_group_norm.default", specialized=("eps",))
def native_group_norm(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: Scalar | float,
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(output, mean [N, group], rstd [N, group]) over the channels of a group and all positions."""
    x = b.convert(b.reshape(input, [N, group, C // group, HxW]), wide(dtype_of(input)))
    normal, mean, rstd = standardized(b, x, [2, 3], eps)
    output = scaled(b, b.reshape(normal, [N, C, HxW]), weight, bias, [1])
    return b.convert(b.reshape(output, shape_of(input)), dtype_of(input)), stored(b, mean, 1), stored(b, rstd, 2)


@rule("aten.native_group_norm_backward.default")
def native_group_norm_backward(
    b: Builder,
    grad_out: SSAValue,
    input: SSAValue,
    mean: SSAValue,
    rstd: SSAValue,
    weight: SSAValue | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Gradients:
    """Gradients of (input, weight, bias)."""
    dtype, grouped = wide(dtype_of(input)), [N, group, C // group, HxW]
    x = b.convert(b.reshape(input, grouped), dtype)
    g = b.convert(b.reshape(grad_out, [N, C, HxW]), dtype)
    rstd = along(b, b.convert(rstd, dtype), grouped, [2, 3])
    normal = b.mul(b.sub(x, along(b, b.convert(mean, dtype), grouped, [2, 3])), rstd)
    of_input = None
    if output_mask[0]:
        of_output = b.reshape(scaled(b, g, weight, None, [1]), grouped)
        of_input = normalized_gradient(b, of_output, normal, rstd, [2, 3])
        of_input = b.convert(b.reshape(of_input, shape_of(input)), dtype_of(input))
    normal = b.reshape(normal, [N, C, HxW])
    return of_input, *_parameter_gradients(b, g, normal, weight, None, [0, 2], output_mask)


@rule("aten._fused_rms_norm.default", specialized=("eps",))
def fused_rms_norm(
    b: Builder, input: SSAValue, normalized_shape: Sequence[int], weight: SSAValue | None, eps: Scalar | float | None
) -> tuple[SSAValue, SSAValue]:
    """(x·rstd·weight, rstd) with rstd = 1 / sqrt(mean(x²) + eps); eps defaults to the dtype's epsilon."""
    import torch

    from lazytpu.aten.dtypes import torch_dtype

    x, rank = b.convert(input, wide(dtype_of(input))), len(shape_of(input))
    dims = range(rank - len(normalized_shape), rank)
    eps = torch.finfo(torch_dtype(dtype_of(x))).eps if eps is None else eps
    folded = b.reduce("add", b.mul(x, x), dims)
    rstd = inverse_deviation(b, b.div(folded, full(b, prod(normalized_shape), folded)), eps)
    output = scaled(b, b.mul(x, along(b, rstd, shape_of(x), dims)), weight, None, dims)
    return b.convert(output, dtype_of(input)), stored(b, rstd, 1)


@rule("aten._fused_rms_norm_backward.default")
def fused_rms_norm_backward(
    b: Builder,
    grad_out: SSAValue,
    input: SSAValue,
    normalized_shape: Sequence[int],
    rstd: SSAValue,
    weight: SSAValue | None,
    output_mask: Sequence[bool],
) -> tuple[SSAValue | None, SSAValue | None]:
    """Gradients of (input, weight): rstd·(g - x̂·mean(g·x̂)) and Σ g·x̂."""
    dtype, shape = wide(dtype_of(input)), shape_of(input)
    dims = range(len(shape) - len(normalized_shape), len(shape))
    g = b.convert(grad_out, dtype)
    rstd = along(b, b.convert(rstd, dtype), shape, dims)
    normal = b.mul(b.convert(input, dtype), rstd)
    of_input = of_weight = None
    if output_mask[0]:
        of_output = scaled(b, g, weight, None, dims)
        centred = b.sub(of_output, b.mul(normal, average(b, b.mul(of_output, normal), dims)))
        of_input = b.convert(b.mul(rstd, centred), dtype_of(input))
    if output_mask[1] and weight is not None:
        of_weight = b.convert(b.reduce("add", b.mul(g, normal), range(dims.start)), dtype_of(weight))
    return of_input, of_weight
