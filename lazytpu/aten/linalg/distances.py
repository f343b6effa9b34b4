"""Distances between rows: (Σ|x - y|ᵖ)^(1/p) of every pair, and their gradients."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from lazytpu.aten.dims import along
from lazytpu.aten.indexing.gather import take
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.promotion import broadcast_shape
from lazytpu.aten.reductions.statistics import norm
from lazytpu.aten.registry import rule
from lazytpu.aten.shape.masks import flat_positions, ranks
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


FROM_2_14 = {"grad_output": "grad"}
"""torch's name for the gradient argument from 2.14 on."""


def _differences(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """x[..., i, k] - y[..., j, k] as [..., i, j, k]; XLA fuses it with the sum over k that follows."""
    *_, rows, width = shape_of(x)
    columns = shape_of(y)[-2]
    batch = broadcast_shape(shape_of(x)[:-2], shape_of(y)[:-2])
    shape = [*batch, rows, columns, width]
    x, y = b.broadcast_to(x, [*batch, rows, width]), b.broadcast_to(y, [*batch, columns, width])
    rank = len(shape)
    return b.sub(along(b, x, shape, [rank - 2]), along(b, y, shape, [rank - 3]))


def distances(b: Builder, x: SSAValue, y: SSAValue, p: float) -> SSAValue:
    """[..., rows of x, rows of y]."""
    differences = _differences(b, x, y)
    return norm(b, differences, p, [len(shape_of(differences)) - 1], False)


@rule("aten._cdist_forward.default")
def cdist_forward(b: Builder, x1: SSAValue, x2: SSAValue, p: float, compute_mode: int | None) -> SSAValue:
    """Distances between the rows of two matrices. Always computed from differences: `compute_mode`, which allows a
    matrix product, is ignored."""
    return distances(b, x1, x2, p)


def _gradient(b: Builder, grad: SSAValue, x: SSAValue, y: SSAValue, p: float, distance: SSAValue) -> SSAValue:
    """Σⱼ gradᵢⱼ · ∂distanceᵢⱼ/∂xᵢ. Where a distance is 0, so is the gradient."""
    delta = _differences(b, x, y)
    shape = shape_of(delta)
    if p == 0:
        return b.constant(0, dtype_of(x), [*shape[:-2], shape[-1]])
    last = [len(shape) - 1]
    size, sign = b.abs(delta), b.unary("sign", delta)
    length = along(b, distance, shape, last)
    zero = b.compare("EQ", length, full(b, 0, length))
    if p == 1:
        slope = sign
    elif p == inf:
        slope = b.select(b.compare("EQ", size, length), sign, full(b, 0, sign))
    elif p == 2:
        slope = b.select(zero, full(b, 0, delta), b.div(delta, length))
    else:
        ratio = b.binary("pow", b.div(size, length), full(b, p - 1, size))
        flat = b.or_(zero, b.compare("EQ", size, full(b, 0, size)))
        slope = b.select(flat, full(b, 0, sign), b.mul(sign, ratio))
    return b.reduce("add", b.mul(slope, along(b, grad, shape, last)), [len(shape) - 2])


@rule("aten._cdist_backward.default", renamed=FROM_2_14)
def cdist_backward(b: Builder, grad: SSAValue, x1: SSAValue, x2: SSAValue, p: float, cdist: SSAValue) -> SSAValue:
    """The gradient of the first matrix, summed over the batch dims along which it was broadcast."""
    gradient = _gradient(b, grad, x1, x2, p, cdist)
    shape = b.out[0][1]
    leading = len(shape_of(gradient)) - len(shape)
    sizes = shape_of(gradient)[leading:]
    broadcast = [d + leading for d, size in enumerate(shape) if size != sizes[d]]
    return b.reshape(b.reduce("add", gradient, [*range(leading), *broadcast]), shape)


def _upper(b: Builder, n: int) -> SSAValue:
    """The mask [n, n] of pairs (i, j) with i < j."""
    return b.compare("LT", b.iota("i32", [n, n], 0), b.iota("i32", [n, n], 1))


@rule("aten._pdist_forward.default")
def pdist_forward(b: Builder, self: SSAValue, p: float = 2.0) -> SSAValue:
    """Distances of the pairs of rows i < j, in row-major order: [n·(n - 1)/2]."""
    n = shape_of(self)[0]
    pairs = n * (n - 1) // 2
    if pairs == 0:
        return b.constant(0, dtype_of(self), [0])
    every = b.reshape(distances(b, self, self, p), [n * n])
    return take(b, every, flat_positions(b, _upper(b, n), pairs), 0)


@rule("aten._pdist_backward.default", renamed=FROM_2_14)
def pdist_backward(b: Builder, grad: SSAValue, self: SSAValue, p: float, pdist: SSAValue) -> SSAValue:
    """The gradient of the rows: the gradient of all ordered pairs, with each distance used for both orders."""
    n = shape_of(self)[0]
    if n < 2:
        return full(b, 0, self)
    upper = b.reshape(_upper(b, n), [n * n])
    running = ranks(b, upper)
    slot = b.sub(b.max(running, full(b, 1, running)), full(b, 1, running))

    def square(x: SSAValue) -> SSAValue:
        spread = take(b, x, slot, 0)
        half = b.reshape(b.select(upper, spread, full(b, 0, spread)), [n, n])
        return b.add(half, b.transpose(half, [1, 0]))

    return _gradient(b, square(grad), self, self, p, square(pdist))
