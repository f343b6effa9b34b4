"""Fake quantization: numbers rounded to those that an integer of few bits stands for, with a mask for the gradient.

The numbers are (q - zero_point) * scale for q from quant_min to quant_max. As in the CPU's kernels, scales are rounded
to f32, and NaN becomes quant_min. By channels, so does a number too large for 64 bits, whatever its sign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.dims import along
from lazytpu.aten.pointwise.operands import full, wide, with_number
from lazytpu.aten.pointwise.unary import trunc
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_float, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder


def _quantized(
    b: Builder,
    x: SSAValue,
    scale: SSAValue,
    zero_point: SSAValue,
    low: int,
    high: int,
    *,
    by_64: bool = False,
    shifted: bool = False,
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(the number that stands for x, whether its integer is in range, the integer before clamping); `scale` and
    `zero_point` are f32. With `by_64` the integer has 64 bits; if it is `shifted`, the zero point is added before
    rounding."""
    dtype = wide(dtype_of(x))
    inverse = b.convert(b.div(full(b, 1, scale), scale), dtype)
    scale, zero = b.convert(scale, dtype), b.convert(zero_point, dtype)
    scaled = b.mul(b.convert(x, dtype), inverse)
    integer = _nearest(b, b.add(scaled, zero)) if shifted else b.add(zero, _nearest(b, scaled))
    result, inside, integer = _dequantized(b, integer, scale, zero, low, high, by_64)
    return b.convert(result, dtype_of(x)), inside, integer


def _nearest(b: Builder, x: SSAValue) -> SSAValue:
    return b.unary("round_nearest_even", x)


def _dequantized(
    b: Builder, integer: SSAValue, scale: SSAValue, zero: SSAValue, low: int, high: int, by_64: bool
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(the number that stands for an integer, whether this is in range, the integer of 64 bits); all of one dtype."""
    limit = full(b, 2.0**63, integer)
    fits = b.compare("LT", b.abs(integer), limit) if by_64 else b.compare("EQ", integer, integer)
    integer = b.select(fits, integer, b.neg(limit))
    least, most = full(b, low, integer), full(b, high, integer)
    inside = b.and_(b.compare("GE", integer, least), b.compare("LE", integer, most))
    return b.mul(b.sub(b.max(b.min(integer, most), least), zero), scale), inside, integer


def _by_float_zero_point(
    b: Builder, x: SSAValue, scale: SSAValue, zero_point: SSAValue, low: int, high: int, narrow: bool
) -> tuple[SSAValue, SSAValue]:
    """The same by zero points that are floats; they are f32 here, and `narrow` says that the op's were f16.

    The CPU's kernel adds f32 zero points to x / scale by a fused operation, which rounds once to f32, and f16 ones by a
    separate one. It computes the number in f64. XLA fuses products and sums of f32 in both cases, so f64 is used.
    """
    inverse = b.div(full(b, 1, scale), scale)
    scaled = b.mul(b.convert(x, "f64"), b.convert(inverse, "f64"))
    if narrow and dtype_of(x) != "f64":
        scaled = b.convert(b.convert(scaled, "f32"), "f64")
    integer = _nearest(b, b.convert(b.add(scaled, b.convert(zero_point, "f64")), "f32"))
    integer, scale, zero = (b.convert(v, "f64") for v in (integer, scale, zero_point))
    result, inside, _ = _dequantized(b, integer, scale, zero, low, high, by_64=True)
    return b.convert(result, dtype_of(x)), inside


def _first(b: Builder, x: SSAValue, like: SSAValue) -> SSAValue:
    """The only element of x as f32, in the shape of another value."""
    return b.broadcast_to(b.reshape(b.convert(x, "f32"), []), shape_of(like))


def _channels(b: Builder, x: SSAValue, like: SSAValue, axis: int) -> SSAValue:
    """x as f32, one element for each place along an axis of another value."""
    shape = shape_of(like)
    return along(b, b.convert(x, "f32"), shape, [d for d in range(len(shape)) if d != axis % len(shape)])


@rule("aten.fake_quantize_per_tensor_affine_cachemask.default", numbers=("scale",))
def per_tensor(
    b: Builder, self: SSAValue, scale: Scalar, zero_point: int, quant_min: int, quant_max: int
) -> tuple[SSAValue, SSAValue]:
    """The zero point is part of the program, since it is checked against the range."""
    factor = b.broadcast_to(b.scalar(scale, "f32"), shape_of(self))
    zero = full(b, zero_point, factor)
    return _quantized(b, self, factor, zero, quant_min, quant_max)[:2]


@rule("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def per_tensor_by_tensors(
    b: Builder,
    self: SSAValue,
    scale: SSAValue,
    zero_point: SSAValue,
    fake_quant_enabled: SSAValue,
    quant_min: int,
    quant_max: int,
) -> tuple[SSAValue, SSAValue]:
    """The same by tensors of one element; `self` and true if the third of them is 0."""
    factor, zero = _first(b, scale, self), _first(b, zero_point, self)
    result, inside, _ = _quantized(b, self, factor, zero, quant_min, quant_max)
    disabled = b.compare("LT", _first(b, fake_quant_enabled, self), full(b, 1, factor))
    return b.select(disabled, self, result), b.or_(disabled, inside)


@rule("aten.fake_quantize_per_channel_affine_cachemask.default")
def per_channel(
    b: Builder, self: SSAValue, scale: SSAValue, zero_point: SSAValue, axis: int, quant_min: int, quant_max: int
) -> tuple[SSAValue, SSAValue]:
    """The same by a scale and a zero point for each place along an axis."""
    if not is_float(dtype_of(zero_point)) and 0 not in shape_of(zero_point):
        b.check(in_range(b, zero_point, quant_min, quant_max), OUT_OF_RANGE, "RuntimeError")
    return by_channels(b, self, scale, zero_point, axis, quant_min, quant_max)


OUT_OF_RANGE = "`zero_point` must be between `quant_min` and `quant_max`."


def in_range(b: Builder, zero_point: SSAValue, low: int, high: int) -> SSAValue:
    """Which zero points are integers of the range."""
    over = b.compare("GE", zero_point, full(b, low, zero_point))
    return b.and_(over, b.compare("LE", zero_point, full(b, high, zero_point)))


def by_channels(
    b: Builder, x: SSAValue, scale: SSAValue, zero_point: SSAValue, axis: int, low: int, high: int
) -> tuple[SSAValue, SSAValue]:
    """(numbers, whether each is in range), for zero points that are in range."""
    factor, zero = _channels(b, scale, x, axis), _channels(b, zero_point, x, axis)
    if is_float(dtype_of(zero_point)):
        return _by_float_zero_point(b, x, factor, zero, low, high, narrow=dtype_of(zero_point) == "f16")
    return _quantized(b, x, factor, zero, low, high, by_64=True)[:2]


def _zero_point(b: Builder, zero_point: SSAValue, low: int, high: int) -> SSAValue:
    """A learned zero point as an integer in range, of f32."""
    nearest = b.unary("round_nearest_even", zero_point)
    return b.max(b.min(nearest, full(b, high, nearest)), full(b, low, nearest))


@rule("aten._fake_quantize_learnable_per_tensor_affine.default")
def learned_per_tensor(
    b: Builder,
    self: SSAValue,
    scale: SSAValue,
    zero_point: SSAValue,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> SSAValue:
    zero = _zero_point(b, _first(b, zero_point, self), quant_min, quant_max)
    return _quantized(b, self, _first(b, scale, self), zero, quant_min, quant_max)[0]


@rule("aten._fake_quantize_learnable_per_channel_affine.default")
def learned_per_channel(
    b: Builder,
    self: SSAValue,
    scale: SSAValue,
    zero_point: SSAValue,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> SSAValue:
    zero = _zero_point(b, _channels(b, zero_point, self, axis), quant_min, quant_max)
    return _quantized(b, self, _channels(b, scale, self, axis), zero, quant_min, quant_max, by_64=True)[0]


def _learned_gradients(
    b: Builder, grad: SSAValue, x: SSAValue, scale: SSAValue, zero: SSAValue, low: int, high: int, share: Scalar
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """The gradients of x, and those of scale and zero point for each element of x ("Learned step size quantization",
    https://arxiv.org/abs/1902.08153). `zero` is rounded."""
    x32 = b.convert(x, "f32")
    _, inside, integer = _quantized(b, x32, scale, zero, low, high, by_64=True, shifted=True)
    nothing, grad32 = full(b, 0, scale), b.convert(grad, "f32")
    shared = b.mul(grad32, b.broadcast_to(b.scalar(share, "f32"), shape_of(scale)))
    limit = b.select(b.compare("LT", integer, full(b, low, integer)), full(b, low, integer), full(b, high, integer))
    of_scale = b.div(b.sub(b.mul(b.sub(integer, zero), scale), x32), scale)
    of_scale = b.mul(shared, b.select(inside, of_scale, b.sub(limit, zero)))
    of_zero = b.select(inside, nothing, b.neg(b.mul(shared, scale)))
    return b.convert(b.select(inside, grad32, nothing), dtype_of(x)), of_scale, of_zero


@rule("aten._fake_quantize_learnable_per_tensor_affine_backward.default", numbers=("grad_factor",))
def learned_per_tensor_backward(
    b: Builder,
    grad: SSAValue,
    self: SSAValue,
    scale: SSAValue,
    zero_point: SSAValue,
    quant_min: int,
    quant_max: int,
    grad_factor: Scalar,
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """The gradients of `self`, `scale` and `zero_point`; the last two have one element.

    As in the CPU's kernel, and otherwise than in the forward pass, the zero point is rounded by adding 1/2 and dropping
    the fraction.
    """
    factor, zero = _first(b, scale, self), with_number(b, "add", _first(b, zero_point, self), 0.5)
    zero = trunc(b, b.max(b.min(zero, full(b, quant_max, zero)), full(b, quant_min, zero)))
    of_x, *others = _learned_gradients(b, grad, self, factor, zero, quant_min, quant_max, grad_factor)
    dims = list(range(len(shape_of(self))))
    sums = [b.convert(b.reshape(b.reduce("add", g, dims), shape), dtype) for g, (dtype, shape) in _outs(b, others)]
    return of_x, sums[0], sums[1]


@rule("aten._fake_quantize_learnable_per_channel_affine_backward.default", numbers=("grad_factor",))
def learned_per_channel_backward(
    b: Builder,
    grad: SSAValue,
    self: SSAValue,
    scale: SSAValue,
    zero_point: SSAValue,
    axis: int,
    quant_min: int,
    quant_max: int,
    grad_factor: Scalar,
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """The same, for each place along the axis; the zero points are rounded as in the forward pass."""
    factor = _channels(b, scale, self, axis)
    zero = _zero_point(b, _channels(b, zero_point, self, axis), quant_min, quant_max)
    of_x, *others = _learned_gradients(b, grad, self, factor, zero, quant_min, quant_max, grad_factor)
    rank = len(shape_of(self))
    dims = [d for d in range(rank) if d != axis % rank]
    sums = [b.convert(b.reduce("add", g, dims), dtype) for g, (dtype, _) in _outs(b, others)]
    return of_x, sums[0], sums[1]


def _outs(b: Builder, gradients: list[SSAValue]) -> list[tuple[SSAValue, tuple[str, tuple[int, ...]]]]:
    """Gradients with the dtype and shape of their results, which are the last ones."""
    return list(zip(gradients, b.out[1:], strict=True))
