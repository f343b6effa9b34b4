"""Array types of HLO with the layouts that the TPU compiler chose: `f32[256,1000]{0,1:T(8,128)S(1)}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from lazytpu.passes.tiling import padded_elements

# Bits of an element; a boolean takes a byte.
BITS = {"pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "f4e2m1fn": 4, "s8": 8, "u8": 8, "bf16": 16, "f16": 16}
BITS |= {"s16": 16, "u16": 16, "f32": 32, "s32": 32, "u32": 32, "f64": 64, "s64": 64, "u64": 64, "c64": 64, "c128": 128}
BITS |= dict.fromkeys(("f8e4m3", "f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz", "f8e8m0fnu"), 8)

HBM = 0
"The memory space of arrays without a mark; 1 is VMEM, beside the TensorCore, and 2 SMEM, of its scalar unit."

_DTYPE = "|".join(sorted(BITS, key=len, reverse=True))
_ARRAY = re.compile(rf"\b({_DTYPE})\[([\d,]*)\](?:\{{([\d,]*)(?::([^{{}}]*))?\}})?")
_TILE = re.compile(r"T\(([\d,*]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")


@dataclass(frozen=True, slots=True)
class Array:
    """One array: its element type, its dimensions, which of them are the minor ones (`order`, the fastest first), the
    tile that the last of these are padded to, and the memory it lies in."""

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = HBM

    @property
    def elements(self) -> int:
        """How many elements there are."""
        return prod(self.dims)

    @property
    def padded_elements(self) -> int:
        """How many it takes in memory, where the minor dimensions fill whole tiles."""
        order = self.order if len(self.order) == len(self.dims) else tuple(reversed(range(len(self.dims))))
        return padded_elements(self.dims, order, self.tile)

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return -(-self.elements * BITS[self.dtype] // 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes in memory."""
        return -(-self.padded_elements * BITS[self.dtype] // 8)

    @property
    def hbm_bytes(self) -> int:
        """Bytes in HBM: none for an array that lies on the chip."""
        return self.padded_bytes if self.space == HBM else 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@lru_cache(maxsize=16384)
def arrays(text: str) -> tuple[Array, ...]:
    """The arrays of a type, those inside of tuples one after the other."""
    return tuple(_array(*found) for found in _ARRAY.findall(text))


def _array(dtype: str, dims: str, order: str, details: str) -> Array:
    tile, space = _TILE.search(details), _SPACE.search(details)
    edges = tuple(1 if each == "*" else int(each) for each in tile[1].split(",")) if tile else ()
    return Array(dtype, _numbers(dims), _numbers(order), edges, int(space[1]) if space else HBM)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)
