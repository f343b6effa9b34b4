"""Array types: of StableHLO, and of HLO with the TPU compiler's layouts, such as `f32[256,1000]{0,1:T(8,128)}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import prod

from lazytpu.inspection.tpu.wire import Message
from lazytpu.passes.layout.tiling import padded_elements

# PrimitiveType of xla/xla_data.proto by number.
_TYPES = dict(
    enumerate(
        """invalid pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 tuple opaque c64 bf16 token c128 f8e5m2 f8e4m3fn s4 u4
        f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz s2 u2 f8e4m3 f8e3m4 s1 u1 f4e2m1fn f8e8m0fnu""".split()
    )
)

HBM = 0
"The default memory space of arrays; 1 is VMEM, next to the TensorCore, and 2 is SMEM, of its scalar unit."


@dataclass(frozen=True, slots=True)
class Array:
    """An array: element type by its name in HLO or MLIR, dimensions, their `order` from the most minor one on, the
    `tile` to which the most minor dimensions are padded, and its memory `space`."""

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = HBM

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.dims)

    @property
    def padded_elements(self) -> int:
        """The number of elements with padding, where the minor dimensions fill whole tiles."""
        order = self.order if len(self.order) == len(self.dims) else tuple(reversed(range(len(self.dims))))
        return padded_elements(self.dims, order, self.tile)

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        return -(-self.elements * bits_of(self.dtype) // 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes with padding."""
        return -(-self.padded_elements * bits_of(self.dtype) // 8)

    @property
    def hbm_bytes(self) -> int:
        """Bytes in HBM: 0 for an array in a memory on the chip."""
        return self.padded_bytes if self.space == HBM else 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@cache
def bits_of(dtype: str) -> int:
    """Return the bits of an element, which are part of its type's name; a boolean takes a byte."""
    if dtype in ("pred", "i1"):
        return 8
    bits = int(re.findall(r"\d+", dtype)[0])
    return 2 * bits if dtype.startswith("complex") else bits


def arrays(shape: Message) -> tuple[Array, ...]:
    """Return the arrays of a ShapeProto, with tuples flattened. Raises ValueError for an unknown element type."""
    kind = _TYPES.get(shape.integer(2))
    if kind == "tuple":
        return tuple(array for element in shape.messages(4) for array in arrays(element))
    if kind in ("token", "opaque"):
        return ()
    if kind in (None, "invalid"):
        raise ValueError(f"an array has XLA's element type {shape.integer(2)}, which is unknown here")
    layout = shape.message(5)
    tiles = layout.messages(6)
    # -2^63 means that a dimension is merged with the next one, "*" in text.
    edges = tuple(max(edge, 1) for edge in tiles[0].integers(1)) if tiles else ()
    return (Array(kind, shape.integers(3), layout.integers(1), edges, layout.integer(8)),)
