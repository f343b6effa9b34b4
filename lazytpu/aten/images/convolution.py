"""Convolutions of one to three dimensions and their gradients.

A transposed convolution is the input gradient of a convolution. Its input gradient is that convolution, and its weight
gradient is the convolution's with input and gradient swapped. So three functions cover everything.

As an op of the dialect, the input gradient convolves the dilated gradient (`lhs_dilation`) with the flipped kernel, and
the weight gradient uses the input's features as batch and the gradient as the kernel. XLA picks the same kernels for
any layout: NCHW and NHWC take the same time, forward and backward, and so does `jax.grad`.

16 images of 64 x 16 x 16, 3x3 to 64 features, f32, XLA:CPU, 2 cores (torch's CPU in parentheses): forward 3.3 ms
(1.4), input gradient 3.0 (1.4), weight gradient 3.4 (1.8); stride 2, 32 x 32 to 128 features: 7.0 (2.9), 4.4 (3.7),
4.6 (3.3). Alternatives take longer: kernel windows stacked for one dot 1.3 to 12 times as long, one dot per kernel
element up to 60 times, gradients padded explicitly before an NCHW convolution 2 to 200 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lazytpu.aten.pointwise.operands import wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


class ConvolutionWindow(NamedTuple):
    """A window in StableHLO's terms, one number per spatial dimension."""

    strides: Sequence[int]
    low: Sequence[int]
    high: Sequence[int]
    lhs_dilation: Sequence[int]
    rhs_dilation: Sequence[int]


@dataclass(frozen=True)
class Geometry:
    """How a convolution's window moves, one number per spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @staticmethod
    def of(rank: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> Geometry:
        """The geometry from an op's arguments, in which one number may stand for all dimensions."""
        per_dim = (tuple(v) * (rank if len(v) == 1 else 1) for v in (stride, padding, dilation))
        strides, pads, dilations = per_dim
        return Geometry(strides, pads, dilations, groups)

    @property
    def direct(self) -> bool:
        """Whether it is an op of the dialect. With groups or three dimensions it is a template, chosen by platform."""
        return self.groups == 1 and len(self.stride) < 3

    @property
    def ones(self) -> tuple[int, ...]:
        return (1,) * len(self.stride)

    def high(self, size: Sequence[int], result: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """The padding at the end for which the window has exactly `result` positions."""
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, self.dilation, strict=True)]
        last = [(n - 1) * s for n, s in zip(result, self.stride, strict=True)]
        return [a + k - n - p for a, k, n, p in zip(last, spans, size, self.padding, strict=True)]


def _written(
    b: Builder, x: SSAValue, w: SSAValue, window: ConvolutionWindow, layout: str, flip: bool = False
) -> SSAValue:
    """An op of the dialect; the result is f32 for f16 and bf16. `layout` has a * for the spatial dimensions."""
    rank = len(window.strides)
    return b.convolution(
        x,
        w,
        strides=window.strides,
        low=window.low,
        high=window.high,
        lhs_dilation=window.lhs_dilation,
        rhs_dilation=window.rhs_dilation,
        window_reversal=[int(flip)] * rank,
        layout=layout.replace("*", "012"[:rank]),
        precision=b.precision,
        dtype=wide(dtype_of(x)),
    )


def _spelled(
    b: Builder, name: str, x: SSAValue, y: SSAValue, window: ConvolutionWindow, groups: int, shape: Sequence[int]
) -> SSAValue:
    """A template; the result is f32 for f16 and bf16."""
    return b.template(
        name,
        [x, y],
        [(wide(dtype_of(x)), shape)],
        strides=tuple(window.strides),
        low=tuple(window.low),
        high=tuple(window.high),
        lhs_dilation=tuple(window.lhs_dilation),
        rhs_dilation=tuple(window.rhs_dilation),
        groups=groups,
        precision=b.precision,
    )[0]


def _forward(b: Builder, x: SSAValue, w: SSAValue, g: Geometry, places: Sequence[int]) -> SSAValue:
    """[N, C, …] and [O, C / groups, …] to [N, O, *places]."""
    exact = g.high(shape_of(x)[2:], places, shape_of(w)[2:])
    # Up to stride - 1 more padding adds no position, and XLA:CPU's fast kernels take no negative padding.
    fits = zip(g.padding, exact, g.stride, strict=True)
    high = [p if h <= p < h + s else h for p, h, s in fits]
    window = ConvolutionWindow(g.stride, g.padding, high, g.ones, g.dilation)
    if g.direct:
        return _written(b, x, w, window, "NC*,OI*,NC*")
    return _spelled(b, "convolution", x, w, window, g.groups, (shape_of(x)[0], shape_of(w)[0], *places))


def _input_gradient(b: Builder, grad: SSAValue, w: SSAValue, g: Geometry, size: Sequence[int]) -> SSAValue:
    """The gradient of x [N, C, *size] from the result's gradient: the dilated gradient convolved with the flipped
    kernel."""
    (outputs, inputs, *kernel), places = shape_of(w), shape_of(grad)[2:]
    reach = [(k - 1) * d for k, d in zip(kernel, g.dilation, strict=True)]
    low = [r - p for r, p in zip(reach, g.padding, strict=True)]
    # Where the window did not reach the last elements, `high` is negative, and they get no gradient.
    high = [r - h for r, h in zip(reach, g.high(size, places, kernel), strict=True)]
    window = ConvolutionWindow(g.ones, low, high, g.stride, g.dilation)
    if g.direct:
        return _written(b, grad, w, window, "NC*,IO*,NC*", flip=True)
    spatial = range(3, 3 + len(kernel))
    grouped = b.reshape(w, (g.groups, outputs // g.groups, inputs, *kernel))
    swapped = b.reverse(b.transpose(grouped, (0, 2, 1, *spatial)), spatial)
    swapped = b.reshape(swapped, (g.groups * inputs, outputs // g.groups, *kernel))
    return _spelled(b, "convolution", grad, swapped, window, g.groups, (shape_of(grad)[0], g.groups * inputs, *size))


def _weight_gradient(b: Builder, grad: SSAValue, x: SSAValue, g: Geometry, kernel: Sequence[int]) -> SSAValue:
    """The gradient of w [O, C / groups, *kernel] from the result's gradient: x convolved with the gradient as kernel,
    with the batch as features."""
    high = g.high(shape_of(x)[2:], shape_of(grad)[2:], kernel)
    window = ConvolutionWindow(g.dilation, g.padding, high, g.ones, g.stride)
    if g.direct:
        return _written(b, x, grad, window, "CN*,IO*,CN*")
    shape = (shape_of(grad)[1], shape_of(x)[1] // g.groups, *kernel)
    return _spelled(b, "convolution_weight_gradient", x, grad, window, g.groups, shape)


@rule("aten.convolution.default", "aten.convolution_overrideable.default")
def convolution(
    b: Builder,
    input: SSAValue,
    weight: SSAValue,
    bias: SSAValue | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> SSAValue:
    """[N, C, …] to [N, O, …]. For f16 and bf16, sums and bias are added in f32 and rounded once."""
    dtype, shape = b.out[0]
    compute = wide(dtype)
    g = Geometry.of(len(shape) - 2, stride, padding, dilation, groups)
    if 0 in shape_of(input) or 0 in shape_of(weight) or 0 in shape:
        result = b.constant(0, compute, shape)
    elif transposed:
        result = _input_gradient(b, input, weight, g, shape[2:])
    else:
        result = _forward(b, input, weight, g, shape[2:])
    if bias is not None and 0 not in shape:  # without input channels there is no output, with any bias
        result = b.add(result, b.broadcast_in_dim(b.convert(bias, compute), shape, [1]))
    return b.convert(result, dtype)


@rule("aten.convolution_backward.default", "aten.convolution_backward_overrideable.default")
def convolution_backward(
    b: Builder,
    grad_output: SSAValue,
    input: SSAValue,
    weight: SSAValue,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
    bias_sizes: list[int] | None = None,
) -> tuple[SSAValue | None, SSAValue | None, SSAValue | None]:
    """Gradients of input, weight and bias, as far as `output_mask` requests them."""
    dtype, rank = dtype_of(input), len(shape_of(input)) - 2
    g = Geometry.of(rank, stride, padding, dilation, groups)
    empty = any(0 in shape_of(v) for v in (grad_output, input, weight))
    kernel, size = shape_of(weight)[2:], shape_of(input)[2:]

    def of_input() -> SSAValue:
        if empty:
            return b.constant(0, dtype, shape_of(input))
        compute = _forward if transposed else _input_gradient
        return b.convert(compute(b, grad_output, weight, g, size), dtype)

    def of_weight() -> SSAValue:
        if empty:
            return b.constant(0, dtype, shape_of(weight))
        grad, x = (input, grad_output) if transposed else (grad_output, input)
        return b.convert(_weight_gradient(b, grad, x, g, kernel), dtype)

    def of_bias() -> SSAValue:
        if empty and bias_sizes:
            return b.constant(0, dtype, bias_sizes)
        return b.convert(b.reduce("add", grad_output, [0, *range(2, rank + 2)]), dtype)

    return (
        of_input() if output_mask[0] else None,
        of_weight() if output_mask[1] else None,
        of_bias() if output_mask[2] else None,
    )


@rule("aten._convolution.default")
def convolution_with_flags(b: Builder, **arguments: Any) -> SSAValue:
    """`convolution` with cuDNN's flags, which are ignored."""
    flags = ("benchmark", "deterministic", "cudnn_enabled", "allow_tf32")
    return convolution(b, **{name: value for name, value in arguments.items() if name not in flags})


@rule("aten.conv_tbc.default")
def conv_tbc(b: Builder, self: SSAValue, weight: SSAValue, bias: SSAValue, pad: int = 0) -> SSAValue:
    """[time, N, C] and [K, C, O] to [time, N, O]."""
    dtype, shape = b.out[0]
    compute = wide(dtype)
    total = _written(b, self, weight, ConvolutionWindow((1,), (pad,), (pad,), (1,), (1,)), "*NC,*IO,*NC")
    return b.convert(b.add(total, b.broadcast_in_dim(b.convert(bias, compute), shape, [2])), dtype)
