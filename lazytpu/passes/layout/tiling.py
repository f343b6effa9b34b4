"""The memory of arrays on a TPU, whose two fastest dimensions are padded to whole tiles.

A vector register holds 8 sublanes of 128 lanes of 32 bits; narrower elements share a sublane: (16, 128) for bfloat16,
(32, 128) for int8 (`Generation.tile_of`). The fastest dimension lies along lanes, the next along sublanes. A dimension
shorter than the sublanes of a tile is padded to the next power of two; a 1-D array lies along lanes only. Dimension
orders are XLA's, fastest dimension first: row-major is (n-1, ..., 0).

The matrix unit processes whole tiles, so padding costs compute too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from lazytpu.passes.generations import GENERATIONS, Generation

FACTS = GENERATIONS["v6e"]
"""The generation assumed when it is unknown; so far all have the same tiles."""


def padded_elements(shape: Sequence[int], order: Sequence[int], tile: Sequence[int]) -> int:
    """The number of elements of an array in memory, its fastest dimensions padded to whole tiles; `tile` as XLA writes
    it, the fastest dimension last."""
    sizes = [shape[dim] for dim in order]
    sizes += [1] * (len(tile) - len(sizes))
    for i, edge in enumerate(reversed(tile)):
        sizes[i] = -(-sizes[i] // edge) * edge
    return prod(sizes)


@dataclass(frozen=True, slots=True)
class Tiled:
    """An array with `bits` bits per element, in one dimension order."""

    shape: tuple[int, ...]
    bits: int
    order: tuple[int, ...]
    tile: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the elements alone."""
        return -(-prod(self.shape) * self.bits // 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes in memory, padding included."""
        return -(-padded_elements(self.shape, self.order, self.tile) * self.bits // 8)

    @property
    def share(self) -> float:
        """The share of padding in `padded_bytes`, 0 to 1."""
        return 1 - self.bytes / max(1, self.padded_bytes)


def tiled(shape: Sequence[int], bits: int, order: Sequence[int] | None = None, facts: Generation = FACTS) -> Tiled:
    """An array in a dimension order, row-major by default. Booleans take a byte. Raises ValueError for an order that is
    not a permutation."""
    dims, bits = tuple(shape), max(8, bits)
    minor = tuple(reversed(range(len(dims)))) if order is None else tuple(order)
    if sorted(minor) != list(range(len(dims))):
        raise ValueError(f"expected a permutation of {len(dims)} dimensions, fastest first, as the order; got {minor}")
    return Tiled(dims, bits, minor, _tile(dims, minor, facts.tile_of(bits)))


@lru_cache(maxsize=4096)
def best(shape: tuple[int, ...], bits: int, facts: Generation = FACTS) -> Tiled:
    """Return the order that takes the least memory; of equal ones, the order closest to row-major."""
    return min((tiled(shape, bits, order, facts) for order in _orders(len(shape))), key=lambda a: a.padded_bytes)


def _tile(shape: tuple[int, ...], order: tuple[int, ...], whole: tuple[int, int]) -> tuple[int, ...]:
    sublanes, lanes = whole
    if len(shape) < 2:
        return (lanes,) if shape else ()
    return min(sublanes, 1 << max(0, shape[order[1]] - 1).bit_length()), lanes


def _orders(rank: int) -> Iterator[tuple[int, ...]]:
    """One order for each choice of the two fastest dimensions; the other dimensions stay row-major."""
    dims = tuple(reversed(range(rank)))
    if rank < 2:
        yield dims
    for first in dims if rank > 1 else ():
        for second in dims:
            if second != first:
                yield first, second, *(d for d in dims if d not in (first, second))
