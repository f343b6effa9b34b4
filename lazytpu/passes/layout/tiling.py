"""What an array takes in a TPU's memory: the tiles that its two fastest dimensions are padded to.

A vector register holds 8 sublanes of 128 lanes of 32 bits; narrower elements share a sublane, (16, 128) for bfloat16,
(32, 128) for int8 (`Generation.tile_of`). The fastest dimension lies along lanes, the next along sublanes. A dimension
that is shorter than the sublanes of a tile gets a tile of the next power of two; an array of one dimension lies along
lanes alone. Orders are XLA's, from the fastest dimension on: row-major is (n-1, ..., 0).

The matrix unit takes what lies along lanes and sublanes, so that what is padding there is computed on, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from lazytpu.passes.generations import GENERATIONS, Generation

FACTS = GENERATIONS["v6e"]
"Whose tiles are reckoned with when the generation is not known: all have the same by now."


def padded_elements(shape: Sequence[int], order: Sequence[int], tile: Sequence[int]) -> int:
    """How many elements an array takes in memory when its fastest dimensions fill whole tiles; `tile` as XLA writes it,
    the edge of the fastest dimension last."""
    sizes = [shape[dim] for dim in order]
    sizes += [1] * (len(tile) - len(sizes))
    for place, edge in enumerate(reversed(tile)):
        sizes[place] = -(-sizes[place] // edge) * edge
    return prod(sizes)


@dataclass(frozen=True, slots=True)
class Tiled:
    """An array of `bits` an element in one order of its dimensions."""

    shape: tuple[int, ...]
    bits: int
    order: tuple[int, ...]
    tile: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return -(-prod(self.shape) * self.bits // 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes that it takes."""
        return -(-padded_elements(self.shape, self.order, self.tile) * self.bits // 8)

    @property
    def share(self) -> float:
        """The part of these that is padding."""
        return 1 - self.bytes / max(1, self.padded_bytes)


def tiled(shape: Sequence[int], bits: int, order: Sequence[int] | None = None, facts: Generation = FACTS) -> Tiled:
    """An array in an order of its dimensions, row-major by default. A boolean takes a byte."""
    dims, bits = tuple(shape), max(8, bits)
    minor = tuple(reversed(range(len(dims)))) if order is None else tuple(order)
    if sorted(minor) != list(range(len(dims))):
        raise ValueError(f"an order of {len(dims)} dimensions names each once, from the fastest on; got {minor}")
    return Tiled(dims, bits, minor, _tile(dims, minor, facts.tile_of(bits)))


@lru_cache(maxsize=4096)
def best(shape: tuple[int, ...], bits: int, facts: Generation = FACTS) -> Tiled:
    """The order that takes least memory; of equal ones, that which moves least of the row-major order."""
    return min((tiled(shape, bits, order, facts) for order in _orders(len(shape))), key=lambda each: each.padded_bytes)


def _tile(shape: tuple[int, ...], order: tuple[int, ...], whole: tuple[int, int]) -> tuple[int, ...]:
    sublanes, lanes = whole
    if len(shape) < 2:
        return (lanes,) if shape else ()
    return min(sublanes, 1 << max(0, shape[order[1]] - 1).bit_length()), lanes


def _orders(rank: int) -> Iterator[tuple[int, ...]]:
    """For each choice of the two fastest dimensions one order: the others stay row-major."""
    dims = tuple(reversed(range(rank)))
    if rank < 2:
        yield dims
    for first in dims if rank > 1 else ():
        for second in dims:
            if second != first:
                yield first, second, *(d for d in dims if d not in (first, second))
