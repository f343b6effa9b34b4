"""Convolutions of one to three dimensions and their gradients.

A transposed convolution is the input gradient of a convolution, its input gradient is that convolution, and its weight
gradient the other's with input and gradient exchanged; so three functions carry all of it.

Where it is written out as an op of the dialect, the input gradient dilates the gradient (`lhs_dilation`) under the
flipped kernel, and the weight gradient takes the input's features as batch and the gradient as the kernel. XLA brings
any layout to the same kernels: written NCHW or NHWC, forward and gradients take the same time, and that of `jax.grad`.
16 images of 64 x 16 x 16, 3x3 to 64 features, f32, XLA:CPU, 2 cores (torch's CPU in parentheses): forward 3.3 ms
(1.4), input gradient 3.0 (1.4), weight gradient 3.4 (1.8); stride 2, 32 x 32 to 128 features: 7.0 (2.9), 4.4 (3.7),
4.6 (3.3). Other spellings are slower: kernel windows stacked for one dot 1.3 to 12 times as slow, one dot for each
kernel element up to 60 times, gradients padded explicitly before an NCHW convolution 2 to 200 times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazytpu.aten.pointwise import wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


@dataclass(frozen=True)
class Geometry:
    """How a convolution's window moves, one number for each spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @staticmethod
    def of(rank: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> Geometry:
        """From an op's arguments, where one number may stand for all dimensions."""
        lists = [tuple(v) * (rank if len(v) == 1 else 1) for v in (stride, padding, dilation)]
        return Geometry(*lists, groups)

    @property
    def direct(self) -> bool:
        """Whether it is an op of the dialect: groups and three dimensions are templates, spelled by platform."""
        return self.groups == 1 and len(self.stride) < 3

    def high(self, size: Sequence[int], result: Sequence[int], kernel: Sequence[int]) -> list[int]:
        """The padding at the end with which the window has exactly `result` places."""
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, self.dilation, strict=True)]
        last = [(n - 1) * s for n, s in zip(result, self.stride, strict=True)]
        return [a + k - n - p for a, k, n, p in zip(last, spans, size, self.padding, strict=True)]


def _convolve(
    b: Builder,
    x: SSAValue,
    w: SSAValue,
    layout: str,
    *,
    strides: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    flip: bool = False,
) -> SSAValue:
    """An op of the dialect, its result f32 for f16 and bf16. `layout` has a * for the spatial dimensions."""
    digits = "".join(map(str, range(len(strides))))
    return b.convolution(
        x,
        w,
        strides=strides,
        low=low,
        high=high,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        window_reversal=[int(flip)] * len(strides),
        layout=layout.replace("*", digits),
        precision=b.precision,
        dtype=wide(dtype_of(x)),
    )


def _forward(b: Builder, x: SSAValue, w: SSAValue, g: Geometry) -> SSAValue:
    """[N, C, …] and [O, C / groups, …] to [N, O, …]."""
    ones = [1] * len(g.stride)
    if g.direct:
        window = {"strides": g.stride, "low": g.padding, "high": g.padding}
        return _convolve(b, x, w, "NC*,OI*,NC*", lhs_dilation=ones, rhs_dilation=g.dilation, **window)
    sizes = zip(shape_of(x)[2:], shape_of(w)[2:], g.stride, g.padding, g.dilation, strict=True)
    places = [(n + 2 * p - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in sizes]
    result = (wide(dtype_of(x)), (shape_of(x)[0], shape_of(w)[0], *places))
    return b.template("convolution", [x, w], [result], **_params(b, g, g.padding))[0]


def _params(b: Builder, g: Geometry, high: Sequence[int]) -> dict[str, str | int | tuple[int, ...]]:
    return {
        "strides": g.stride,
        "low": g.padding,
        "high": tuple(high),
        "dilation": g.dilation,
        "groups": g.groups,
        "precision": b.precision,
    }


def _input_gradient(b: Builder, grad: SSAValue, w: SSAValue, g: Geometry, size: Sequence[int]) -> SSAValue:
    """The gradient of x [N, C, *size] from that of the result."""
    kernel, places = shape_of(w)[2:], shape_of(grad)[2:]
    high = g.high(size, places, kernel)
    if not g.direct:
        result = (wide(dtype_of(grad)), (shape_of(grad)[0], shape_of(w)[1] * g.groups, *size))
        return b.template("convolution_input_gradient", [grad, w], [result], **_params(b, g, high))[0]
    reach = [(k - 1) * d for k, d in zip(kernel, g.dilation, strict=True)]
    window = {"low": [r - p for r, p in zip(reach, g.padding, strict=True)]}
    # `high` counts elements that the window did not reach as negative: they get no gradient.
    window["high"] = [r - h for r, h in zip(reach, high, strict=True)]
    ones = [1] * len(g.stride)
    return _convolve(
        b, grad, w, "NC*,IO*,NC*", strides=ones, lhs_dilation=g.stride, rhs_dilation=g.dilation, flip=True, **window
    )


def _weight_gradient(b: Builder, grad: SSAValue, x: SSAValue, g: Geometry, kernel: Sequence[int]) -> SSAValue:
    """The gradient of w [O, C / groups, *kernel] from that of the result."""
    high = g.high(shape_of(x)[2:], shape_of(grad)[2:], kernel)
    if not g.direct:
        result = (wide(dtype_of(grad)), (shape_of(grad)[1], shape_of(x)[1] // g.groups, *kernel))
        return b.template("convolution_weight_gradient", [grad, x], [result], **_params(b, g, high))[0]
    window = {"strides": g.dilation, "low": g.padding, "high": high}
    ones = [1] * len(g.stride)
    return _convolve(b, x, grad, "CN*,IO*,CN*", lhs_dilation=ones, rhs_dilation=g.stride, **window)


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
    """[N, C, …] to [N, O, …]; the sums and the bias are added in f32 for f16 and bf16, and rounded once."""
    dtype, shape = b.out[0]
    within = wide(dtype)
    g = Geometry.of(len(shape) - 2, stride, padding, dilation, groups)
    if 0 in shape_of(input) or 0 in shape_of(weight) or 0 in shape:
        result = b.constant(0, within, shape)
    elif transposed:
        result = _input_gradient(b, input, weight, g, shape[2:])
    else:
        result = _forward(b, input, weight, g)
    if bias is not None:
        result = b.add(result, b.broadcast_in_dim(b.convert(bias, within), shape, [1]))
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
    """Gradients of input, weight and bias, those that `output_mask` asks for."""
    dtype, rank = dtype_of(input), len(shape_of(input)) - 2
    g = Geometry.of(rank, stride, padding, dilation, groups)
    empty = any(0 in shape_of(v) for v in (grad_output, input, weight))
    kernel, size = shape_of(weight)[2:], shape_of(input)[2:]
    of_input: SSAValue | None = None
    of_weight: SSAValue | None = None
    of_bias: SSAValue | None = None
    if output_mask[0]:
        if empty:
            of_input = b.constant(0, dtype, shape_of(input))
        elif transposed:
            of_input = _forward(b, grad_output, weight, g)
        else:
            of_input = _input_gradient(b, grad_output, weight, g, size)
    if output_mask[1]:
        if empty:
            of_weight = b.constant(0, dtype, shape_of(weight))
        elif transposed:
            of_weight = _weight_gradient(b, input, grad_output, g, kernel)
        else:
            of_weight = _weight_gradient(b, grad_output, input, g, kernel)
    if output_mask[2]:
        of_bias = b.reduce("add", grad_output, [0, *range(2, rank + 2)])
    return tuple(None if v is None else b.convert(v, dtype) for v in (of_input, of_weight, of_bias))  # type: ignore[return-value]
