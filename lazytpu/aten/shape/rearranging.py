"""Joining, repeating, flipping and masking by position."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.dims import front
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


@rule("aten.cat.default")
def cat(b: Builder, tensors: Sequence[SSAValue], dim: int = 0) -> SSAValue:
    """The tensors concatenated along `dim` in their common dtype. Tensors of shape [0] fit any shape."""
    dtype, shape = b.out[0]
    dim = front(dim, len(shape))
    converted = [b.convert(t, dtype) for t in tensors if prod(shape_of(t)) or len(shape_of(t)) == len(shape) > 1]
    return b.concatenate(converted, dim) if converted else b.constant(0, dtype, shape)


@rule("aten.stack.default")
def stack(b: Builder, tensors: Sequence[SSAValue], dim: int = 0) -> SSAValue:
    """The tensors stacked along a new dimension."""
    dtype, shape = b.out[0]
    dim = front(dim, len(shape))
    one = [*shape[:dim], 1, *shape[dim + 1 :]]
    return b.concatenate([b.reshape(b.convert(t, dtype), one) for t in tensors], dim)


@rule("aten.repeat.default")
def repeat(b: Builder, self: SSAValue, repeats: Sequence[int]) -> SSAValue:
    """`self` tiled: every dimension repeated as a whole, after new leading dims."""
    shape = shape_of(self)
    shape = (*[1] * (len(repeats) - len(shape)), *shape)
    interleaved = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    dims = range(2 * (len(shape) - len(shape_of(self))) + 1, len(interleaved), 2)
    return b.reshape(b.broadcast_in_dim(self, interleaved, dims), b.out[0][1])


@rule("aten.flip.default")
def flip(b: Builder, self: SSAValue, dims: Sequence[int]) -> SSAValue:
    """`self` reversed along `dims`."""
    rank = len(shape_of(self))
    return b.reverse(self, sorted(front(d, rank) for d in dims)) if rank else self


@rule("aten.roll.default")
def roll(b: Builder, self: SSAValue, shifts: Sequence[int], dims: Sequence[int] = ()) -> SSAValue:
    """Elements shifted cyclically by `shifts` along `dims`; without dims, in the flattened tensor."""
    shape = shape_of(self)
    if not dims:
        size = prod(shape)
        return b.reshape(_rolled(b, b.reshape(self, [size]), shifts[0], 0), shape)
    for shift, dim in zip(shifts, dims, strict=True):
        self = _rolled(b, self, shift, front(dim, len(shape))) if shape else self
    return self


def _rolled(b: Builder, x: SSAValue, shift: int, dim: int) -> SSAValue:
    shape = shape_of(x)
    if prod(shape) == 0 or shift % shape[dim] == 0:
        return x
    cut = shape[dim] - shift % shape[dim]
    starts = [cut if d == dim else 0 for d in range(len(shape))]
    limits = [cut if d == dim else n for d, n in enumerate(shape)]
    return b.concatenate([b.slice(x, starts, shape), b.slice(x, [0] * len(shape), limits)], dim)


@rule("aten._test_autograd_multiple_dispatch_view_copy.default")
def flattened(b: Builder, self: SSAValue) -> SSAValue:
    """self in one dimension: torch's example of a view with derivatives of its own for each device."""
    return b.reshape(self, [prod(shape_of(self))])


@rule("aten.tril.default")
def tril(b: Builder, self: SSAValue, diagonal: int = 0) -> SSAValue:
    """The last two dims with zeros above the diagonal: column - row <= diagonal stays."""
    return _triangle(b, self, "LE", diagonal)


@rule("aten.triu.default")
def triu(b: Builder, self: SSAValue, diagonal: int = 0) -> SSAValue:
    """The last two dims with zeros below the diagonal: column - row >= diagonal stays."""
    return _triangle(b, self, "GE", diagonal)


def _triangle(b: Builder, x: SSAValue, direction: str, diagonal: int) -> SSAValue:
    shape = shape_of(x)
    matrix = shape[-2:]
    distance = b.sub(b.iota("i32", matrix, 1), b.iota("i32", matrix, 0))
    limit = max(min(diagonal, max(matrix)), -max(matrix))
    keep = b.compare(direction, distance, b.constant(limit, "i32", matrix))
    return b.select(b.broadcast_to(keep, shape), x, b.constant(0, dtype_of(x), shape))
