"""Packed sequences: rows [N, ·], batch_sizes[t] of them for each time step t, of the sequences that are that long.

The longest sequence is the first, so batch sizes do not grow. They are part of the program, and rows are found by
tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lazytpu.aten.indexing.tables import take
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder


class Packing:
    """What is packed as `batch_sizes` say; without any, values are [T, B, ·] already."""

    def __init__(self, batch_sizes: Sequence[int]):
        sizes = np.array(batch_sizes, dtype=np.int32)
        self.packed, self.steps, self.sequences = bool(batch_sizes), len(sizes), max(batch_sizes, default=0)
        self.ragged = len(set(batch_sizes)) > 1
        self._starts = np.cumsum(sizes) - sizes
        self._valid = np.arange(self.sequences) < sizes[:, None]

    def valid(self, b: Builder) -> SSAValue | None:
        """Which sequences each step is in, [T, B]; None if it is in all."""
        return b.array(self._valid, "i1") if self.ragged else None

    def unpack(self, b: Builder, rows: SSAValue, padding: Scalar | int = 0) -> SSAValue:
        """[T, B, ·] of rows [N, ·], with `padding` where a sequence has ended."""
        if not self.packed:
            return rows
        shape = (self.steps, self.sequences, *shape_of(rows)[1:])
        if not self.ragged:
            return b.reshape(rows, shape)
        places = np.where(self._valid, self._starts[:, None] + np.arange(self.sequences), 0)
        unpacked = take(b, rows, places, 0)
        valid = b.broadcast_in_dim(b.array(self._valid, "i1"), shape, (0, 1))
        return b.select(valid, unpacked, full(b, padding, unpacked))

    def pack(self, b: Builder, values: SSAValue) -> SSAValue:
        """Rows [N, ·] of [T, B, ·]."""
        if not self.packed:
            return values
        rest = shape_of(values)[2:]
        rows = b.reshape(values, (self.steps * self.sequences, *rest))
        if not self.ragged:
            return rows
        places = np.flatnonzero(self._valid)
        return b.reshape(take(b, rows, places[:, None], 0), (len(places), *rest))


@rule("lazytpu.pack.default")
def pack(b: Builder, input: SSAValue, batch_sizes: Sequence[int]) -> SSAValue:
    """Rows [N, ·] of [T or more, B, ·]."""
    shape = shape_of(input)
    return Packing(batch_sizes).pack(b, b.slice(input, [0] * len(shape), [len(batch_sizes), *shape[1:]]))


@rule("lazytpu.unpack.default", numbers=("padding",))
def unpack(b: Builder, data: SSAValue, batch_sizes: Sequence[int], padding: Scalar, length: int) -> SSAValue:
    """[length, B, ·] of rows [N, ·]."""
    unpacked = Packing(batch_sizes).unpack(b, data, padding)
    steps, *rest = shape_of(unpacked)
    if length == steps:
        return unpacked
    number = b.scalar(padding, dtype_of(data))
    return b.concatenate([unpacked, b.broadcast_to(number, (length - steps, *rest))], 0)
