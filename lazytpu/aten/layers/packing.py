"""Packed sequences: rows [R, ·] of T time steps of B sequences, R = T·B, sorted by steps, then sequences. The first
rows belong to a sequence; the contents of the others are unspecified. Their places are numbers of the run, `places` [2,
T, B]: for each row its time step times B plus its sequence, then for each step of each sequence its row, or -1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder


class Packing:
    """Converts between packed rows and time steps by `places`; without `places`, values are [T, B, ·] already."""

    def __init__(self, b: Builder, places: SSAValue | None):
        self.places = places
        if places is None:
            return
        _, self.steps, self.sequences = shape_of(places)
        grid_shape = (1, self.steps, self.sequences)
        self._places = b.reshape(b.slice(places, [0, 0, 0], grid_shape), (self.steps * self.sequences,))
        rows = b.slice(places, [1, 0, 0], [2, *grid_shape[1:]])
        self._rows = b.reshape(rows, (self.steps * self.sequences,))
        grid = b.reshape(rows, grid_shape[1:])
        self._valid = b.compare("GE", grid, full(b, 0, grid))

    def valid(self) -> SSAValue | None:
        """Which sequences each step is in, [T, B]; None if it is in all."""
        return None if self.places is None else self._valid

    def in_steps(self, b: Builder, values: SSAValue) -> SSAValue:
        """Return [T, B, ·] from values with a row for each of T·B, in that order."""
        return values if self.places is None else b.reshape(values, (self.steps, self.sequences, *shape_of(values)[1:]))

    def unpack(self, b: Builder, rows: SSAValue, padding: Scalar | int = 0) -> SSAValue:
        """[T, B, ·] of rows, with `padding` where a sequence has ended."""
        if self.places is None:
            return rows
        unpacked = self.in_steps(b, _take(b, rows, self._rows))
        valid = b.broadcast_in_dim(self._valid, shape_of(unpacked), (0, 1))
        return b.select(valid, unpacked, full(b, padding, unpacked))

    def pack(self, b: Builder, values: SSAValue) -> SSAValue:
        """Rows of [T, B, ·]."""
        if self.places is None:
            return values
        widths = shape_of(values)[2:]
        return _take(b, b.reshape(values, (self.steps * self.sequences, *widths)), self._places)


def _take(b: Builder, rows: SSAValue, indices: SSAValue) -> SSAValue:
    """Rows at indices [R], which are clamped."""
    _, *widths = shape_of(rows)
    return b.gather(
        rows,
        indices,
        offset_dims=range(1, 1 + len(widths)),
        collapsed_slice_dims=[0],
        start_index_map=[0],
        index_vector_dim=1,
        slice_sizes=[1, *widths],
    )


@rule("lazytpu.pack_rows.default")
def pack(b: Builder, input: SSAValue, places: SSAValue) -> SSAValue:
    """Rows of [any number of steps, B, ·]; behind its end are zeros."""
    packing = Packing(b, places)
    return packing.pack(b, _of_length(b, input, packing.steps, b.constant(0, dtype_of(input), ())))


@rule("lazytpu.unpack_rows.default", numbers=("padding",))
def unpack(b: Builder, rows: SSAValue, places: SSAValue, padding: Scalar, length: int) -> SSAValue:
    """[length, B, ·] of rows."""
    unpacked = Packing(b, places).unpack(b, rows, padding)
    return _of_length(b, unpacked, length, b.scalar(padding, dtype_of(rows)))


def _of_length(b: Builder, x: SSAValue, length: int, padding: SSAValue) -> SSAValue:
    """x [T, ·] with as many steps, the last of them cut off or added."""
    steps, *widths = shape_of(x)
    if length <= steps:
        return b.slice(x, [0] * (1 + len(widths)), [length, *widths])
    return b.concatenate([x, b.broadcast_to(padding, (length - steps, *widths))], 0)
