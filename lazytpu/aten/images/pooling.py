"""Max and average pooling, with their gradients. The templates hold the parts that differ by platform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, numel, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

    Pair = tuple[SSAValue, SSAValue]


def by_rank(stem: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a rule `f(b, rank, **arguments)` for two and three dimensions: "max_pool{}d" stands for both ops."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for rank in (2, 3):
            rule(f"aten.{stem.format(rank)}.default")(partial(function, rank=rank))
        return function

    return register


@dataclass(frozen=True)
class Pooling:
    """A window over the spatial dimensions of `size`, with `places` positions; one number per dimension."""

    size: tuple[int, ...]
    places: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def of(
        size: Sequence[int],
        places: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int] = (1,),
    ) -> Pooling:
        """The window from an op's arguments, in which one number may stand for all dimensions; no stride means the
        kernel's size."""
        moves = (kernel, stride or kernel, padding, dilation)
        spread = [tuple(v) * (len(size) if len(v) == 1 else 1) for v in moves]
        return Pooling(tuple(size), tuple(places), spread[0], spread[1], spread[2], spread[3])

    @property
    def high(self) -> tuple[int, ...]:
        """The padding at the end for which the window has exactly `places` positions: more than `padding` in ceil mode,
        negative where the window does not reach the last elements."""
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        terms = zip(self.places, self.stride, spans, self.size, self.padding, strict=True)
        return tuple((o - 1) * s + span - n - p for o, s, span, n, p in terms)

    @property
    def apart(self) -> bool:
        """Whether windows are adjacent: they neither overlap nor leave gaps, and are not dilated."""
        return self.kernel == self.stride and all(d == 1 for d in self.dilation)

    def params(self) -> dict[str, tuple[int, ...]]:
        """The templates' parameters."""
        return {
            "sizes": self.kernel,
            "strides": self.stride,
            "low": self.padding,
            "high": self.high,
            "dilation": self.dilation,
        }


def planes(b: Builder, x: SSAValue, rank: int) -> SSAValue:
    """x with all but its last `rank` dimensions flattened into one."""
    shape = shape_of(x)
    return b.reshape(x, (prod(shape[: len(shape) - rank]), *shape[len(shape) - rank :]))


def max_pool(b: Builder, x: SSAValue, p: Pooling) -> Pair:
    """(maxima, i64 indices), of the shapes in `b.out`."""
    rank, shape = len(p.size), b.out[0][1]
    flat = planes(b, x, rank)
    if 0 in shape:
        return b.constant(0, dtype_of(x), shape), b.constant(0, "i64", shape)
    results = [(d, (shape_of(flat)[0], *p.places)) for d in (dtype_of(x), "i64")]
    values, indices = b.template("max_pool", [flat], results, **p.params())
    return b.reshape(values, shape), b.reshape(indices, shape)


@by_rank("max_pool{}d_with_indices")
def max_pool_with_indices(
    b: Builder,
    rank: int,
    self: SSAValue,
    kernel_size: list[int],
    stride: list[int] | None = None,
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Pair:
    """(maxima, row-major indices in the plane)."""
    size, places = shape_of(self)[-rank:], b.out[0][1][-rank:]
    return max_pool(b, self, Pooling.of(size, places, kernel_size, stride or (), padding, dilation))


def scatter_planes(b: Builder, grad: SSAValue, indices: SSAValue, shape: Sequence[int], rank: int) -> SSAValue:
    """The elements of `grad` added up at `indices` into planes, the last `rank` dimensions of `shape`; f16 and bf16 are
    summed in f32."""
    dtype = dtype_of(grad)
    if 0 in shape or 0 in shape_of(grad):
        return b.constant(0, dtype, shape)
    count, size = prod(shape[: len(shape) - rank]), prod(shape[len(shape) - rank :])
    flat = b.reshape(b.convert(grad, wide(dtype)), (count, numel(shape_of(grad)) // count))
    places = b.reshape(b.convert(indices, "i32"), (*shape_of(flat), 1))
    added = b.scatter(
        b.constant(0, wide(dtype), (count, size)),
        places,
        flat,
        kind="add",
        update_window_dims=[],
        inserted_window_dims=[1],
        input_batching_dims=[0],
        scatter_indices_batching_dims=[0],
        scatter_dims_to_operand_dims=[1],
        index_vector_dim=2,
    )
    return b.convert(b.reshape(added, shape), dtype)


def max_pool_gradient(b: Builder, grad: SSAValue, x: SSAValue, indices: SSAValue, p: Pooling) -> SSAValue:
    """Each gradient at the position of its maximum; f16 and bf16 are summed in f32."""
    rank, dtype = len(p.size), dtype_of(grad)
    if 0 in shape_of(grad) or 0 in shape_of(x):
        return b.constant(0, dtype, shape_of(x))
    grad = _from_zero(b, b.convert(grad, wide(dtype)))
    flat = [planes(b, v, rank) for v in (grad, b.convert(x, wide(dtype)), indices)]
    gradient = b.template("max_pool_backward", flat, [(wide(dtype), shape_of(flat[1]))], **p.params())
    return b.convert(b.reshape(gradient[0], shape_of(x)), dtype)


@by_rank("max_pool{}d_with_indices_backward")
def max_pool_with_indices_backward(
    b: Builder,
    rank: int,
    grad_output: SSAValue,
    self: SSAValue,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: SSAValue,
) -> SSAValue:
    size, places = shape_of(self)[-rank:], shape_of(grad_output)[-rank:]
    p = Pooling.of(size, places, kernel_size, stride, padding, dilation)
    return max_pool_gradient(b, grad_output, self, indices, p)


def _divisors(b: Builder, p: Pooling, include_pad: bool, override: int | None, dtype: str) -> SSAValue:
    """The divisor of each window's sum: [*places], or 0-d if all are equal."""
    if override is not None:
        return b.constant(override, dtype)
    dims = list(zip(p.size, p.places, p.kernel, p.stride, p.padding, strict=True))
    if all((include_pad or pad == 0) and (o - 1) * s + k <= n + 2 * pad for n, o, k, s, pad in dims):
        return b.constant(prod(p.kernel), dtype)
    counts: list[np.ndarray] = []
    for n, o, k, s, pad in dims:
        start = np.arange(o) * s - pad
        end = np.minimum(start + k, n + pad)
        counts.append(end - start if include_pad else np.minimum(end, n) - np.maximum(start, 0))
    if all((c == c[0]).all() for c in counts):
        return b.constant(int(np.prod([c[0] for c in counts])), dtype)
    total: SSAValue | None = None
    for dim, count in enumerate(counts):
        along = b.broadcast_in_dim(b.array(count, dtype), p.places, [dim])
        total = along if total is None else b.mul(total, along)
    assert total is not None
    return total


def _sum(b: Builder, x: SSAValue, p: Pooling) -> SSAValue:
    """[planes, *size] to [planes, *places]."""
    ones = (1,) * len(p.size)
    result = (dtype_of(x), (shape_of(x)[0], *p.places))
    return _from_zero(b, b.template("window_sum", [x], [result], base_dilation=ones, **p.params())[0])


def _from_zero(b: Builder, x: SSAValue) -> SSAValue:
    """Return 0.0 + x, of a sum or of its terms: ATen starts sums at 0.0, so that none is -0.0."""
    return b.add(x, full(b, 0, x))


def _spread(b: Builder, grad: SSAValue, p: Pooling) -> SSAValue:
    """The adjoint of `_sum`: adjacent windows repeat their gradient, others are summed."""
    rank, count = len(p.size), shape_of(grad)[0]
    if not p.apart:
        low = tuple(k - 1 - pad for k, pad in zip(p.kernel, p.padding, strict=True))
        high = tuple(k - 1 - h for k, h in zip(p.kernel, p.high, strict=True))
        ones = (1,) * rank
        window = {"sizes": p.kernel, "strides": ones, "low": low, "high": high, "dilation": ones}
        result = (dtype_of(grad), (count, *p.size))
        return b.template("window_sum", [grad], [result], base_dilation=p.stride, **window)[0]
    paired = [n for pair in zip(p.places, p.kernel, strict=True) for n in pair]
    repeated = b.broadcast_in_dim(grad, (count, *paired), (0, *(1 + 2 * d for d in range(rank))))
    tiled = b.reshape(repeated, (count, *(o * k for o, k in zip(p.places, p.kernel, strict=True))))
    low, high = [0, *(-pad for pad in p.padding)], [0, *(-h for h in p.high)]
    return b.pad(tiled, b.constant(0, dtype_of(grad)), low, high)


@by_rank("avg_pool{}d")
def avg_pool(
    b: Builder,
    rank: int,
    self: SSAValue,
    kernel_size: list[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> SSAValue:
    """Means of windows; f16 and bf16 are summed and divided in f32."""
    dtype, shape = b.out[0]
    if 0 in shape:
        return b.constant(0, dtype, shape)
    p = Pooling.of(shape_of(self)[-rank:], shape[-rank:], kernel_size, stride, padding)
    sums = _sum(b, planes(b, b.convert(self, wide(dtype)), rank), p)
    count = _divisors(b, p, count_include_pad, divisor_override, dtype_of(sums))
    quotient = b.div(sums, b.broadcast_to(count, shape_of(sums)))
    return b.convert(b.reshape(quotient, shape), dtype)


@by_rank("avg_pool{}d_backward")
def avg_pool_backward(
    b: Builder,
    rank: int,
    grad_output: SSAValue,
    self: SSAValue,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> SSAValue:
    dtype, shape = dtype_of(grad_output), shape_of(self)
    if 0 in shape or 0 in shape_of(grad_output):
        return b.constant(0, dtype, shape)
    p = Pooling.of(shape[-rank:], shape_of(grad_output)[-rank:], kernel_size, stride, padding)
    grad = planes(b, b.convert(grad_output, wide(dtype)), rank)
    count = _divisors(b, p, count_include_pad, divisor_override, dtype_of(grad))
    spread = _spread(b, _from_zero(b, b.div(grad, b.broadcast_to(count, shape_of(grad)))), p)
    return b.convert(b.reshape(spread, shape), dtype)
