"""Array types of HLO with the TPU compiler's layouts, such as `f32[256,1000]{0,1:T(8,128)}` in its text."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lazytpu.inspection.tpu.wire import Message
from lazytpu.passes.layout.tiling import padded_elements

# Bits per element; a boolean takes a byte.
BITS = {"pred": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "f4e2m1fn": 4, "s8": 8, "u8": 8, "bf16": 16, "f16": 16}
BITS |= {"s16": 16, "u16": 16, "f32": 32, "s32": 32, "u32": 32, "f64": 64, "s64": 64, "u64": 64, "c64": 64, "c128": 128}
BITS |= dict.fromkeys(
    ("f8e5m2", "f8e4m3fn", "f8e4m3b11fnuz", "f8e5m2fnuz", "f8e4m3fnuz", "f8e4m3", "f8e3m4", "f8e8m0fnu"), 8
)
BITS |= {"s1": 1, "u1": 1}

# PrimitiveType of xla/xla_data.proto by number.
_TYPES = dict(
    enumerate(
        """invalid pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64 tuple opaque c64 bf16 token c128 f8e5m2 f8e4m3fn s4 u4
        f8e4m3b11fnuz f8e5m2fnuz f8e4m3fnuz s2 u2 f8e4m3 f8e3m4 s1 u1 f4e2m1fn f8e8m0fnu""".split()
    )
)
_NO_ARRAYS = ("token", "opaque")

HBM = 0
"The default memory space of arrays; 1 is VMEM, next to the TensorCore, and 2 is SMEM, of its scalar unit."


@dataclass(frozen=True, slots=True)
class Array:
    """An array: element type, dimensions, their `order` from the most minor one on, the `tile` to which the most minor
    dimensions are padded, and its memory `space`."""

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
        return -(-self.elements * BITS[self.dtype] // 8)

    @property
    def padded_bytes(self) -> int:
        """Bytes with padding."""
        return -(-self.padded_elements * BITS[self.dtype] // 8)

    @property
    def hbm_bytes(self) -> int:
        """Bytes in HBM: 0 for an array in a memory on the chip."""
        return self.padded_bytes if self.space == HBM else 0

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


def arrays(shape: Message) -> tuple[Array, ...]:
    """Return the arrays of a ShapeProto, with tuples flattened. Raises ValueError for an unknown element type."""
    kind = _TYPES.get(shape.integer(2))
    if kind == "tuple":
        return tuple(array for element in shape.messages(4) for array in arrays(element))
    if kind in _NO_ARRAYS:
        return ()
    if kind not in BITS:
        raise ValueError(f"an array has XLA's element type {shape.integer(2)}, which is unknown here")
    layout = shape.message(5)
    tiles = layout.messages(6)
    # -2^63 means that a dimension is merged with the next one, "*" in text.
    edges = tuple(max(edge, 1) for edge in tiles[0].integers(1)) if tiles else ()
    return (Array(kind, shape.integers(3), layout.integers(1), edges, layout.integer(8)),)
