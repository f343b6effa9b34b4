"""ATen dims, which may be negative, and the shapes derived from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def front(dim: int, rank: int) -> int:
    """`dim` as a non-negative index. As in torch, a 0-d tensor accepts 0 and -1."""
    return dim + max(rank, 1) if dim < 0 else dim


def reduced(dim: int | Sequence[int] | None, rank: int) -> list[int]:
    """The dims that a reduction folds, in order: all for None and []; none on a 0-d tensor."""
    if dim is None or dim == [] or dim == ():
        return list(range(rank))
    named = [dim] if isinstance(dim, int) else dim
    return sorted(front(d, rank) for d in named) if rank else []


def keepdim_shape(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """`shape` with size 1 at `dims`, as with `keepdim=True`."""
    return [1 if d in dims else size for d, size in enumerate(shape)]


def without(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """`shape` without `dims`."""
    return [size for d, size in enumerate(shape) if d not in dims]


def along(b: Builder, x: SSAValue, shape: Sequence[int], dims: Sequence[int]) -> SSAValue:
    """`x` broadcast to `shape` along `dims`, which it lacks or has with size 1."""
    kept = [d for d in range(len(shape)) if d not in dims]
    return b.broadcast_in_dim(b.reshape(x, [shape[d] for d in kept]), shape, kept)
