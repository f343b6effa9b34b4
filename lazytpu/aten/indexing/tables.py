"""Weighted sums of elements along one dimension, where elements and weights are known at import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lazytpu.aten.pointwise.operands import full
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

# Tables whose dense form has up to this many numbers are searched for patterns.
DENSE = 1 << 22


@dataclass(frozen=True)
class Table:
    """Result element o is the sum over t of weights[o, t] * x[elements[o, t]]; both arrays are [places, taps].

    Taps where `real` is false are left out: they do not even count as 0 times an infinity.
    """

    size: int
    elements: np.ndarray
    weights: np.ndarray
    real: np.ndarray

    @staticmethod
    def of(size: int, elements: np.ndarray, weights: np.ndarray | None = None) -> Table:
        """A table in which all taps count. Without `weights` each is 1."""
        ones = np.ones(elements.shape) if weights is None else weights
        return Table(size, elements, ones, np.ones(elements.shape, bool))

    @staticmethod
    def ragged(size: int, members: Sequence[np.ndarray], weights: Sequence[np.ndarray] | None = None) -> Table:
        """A table from one list of elements per result, of any lengths."""
        longest = max(1, *map(len, members)) if members else 1
        shape = (len(members), longest)
        elements, factors, real = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape, bool)
        for row, member in enumerate(members):
            elements[row, : len(member)] = member
            factors[row, : len(member)] = 1 if weights is None else weights[row]
            real[row, : len(member)] = True
        return Table(size, elements, factors, real)

    def adjoint(self) -> Table:
        """The transpose: the results that each element contributes to, and the weights."""
        row, tap = np.nonzero(self.real & (self.weights != 0))
        element = self.elements[row, tap]
        order = np.argsort(element, kind="stable")
        ends = np.searchsorted(element[order], np.arange(1, self.size))
        places, factors = (np.split(v[order], ends) for v in (row, self.weights[row, tap]))
        return Table.ragged(len(self.elements), places, factors)

    def merged(self) -> Table:
        """The same sums with each element named once."""
        members = [np.nonzero(row)[0] for row in self.dense()]
        return Table.ragged(self.size, members, [row[m] for row, m in zip(self.dense(), members, strict=True)])

    def dense(self) -> np.ndarray:
        """The table as a matrix [places, size]."""
        matrix = np.zeros((len(self.elements), self.size))
        row, tap = np.nonzero(self.real)
        np.add.at(matrix, (row, self.elements[row, tap]), self.weights[row, tap])
        return matrix


def take(b: Builder, x: SSAValue, elements: np.ndarray, dim: int) -> SSAValue:
    """`x` with `dim` replaced by the two dims of `elements`, which index it."""
    shape = shape_of(x)
    taken = b.gather(
        x,
        b.array(elements.reshape(-1), "i32"),
        offset_dims=[d for d in range(len(shape)) if d != dim],
        collapsed_slice_dims=[dim],
        start_index_map=[dim],
        index_vector_dim=1,
        slice_sizes=[1 if d == dim else n for d, n in enumerate(shape)],
    )
    return b.reshape(taken, (*shape[:dim], *elements.shape, *shape[dim + 1 :]))


def gathered(b: Builder, x: SSAValue, table: Table, dim: int) -> SSAValue:
    """The table's sums along one dimension, in the dtype of `x`."""
    taken = take(b, x, table.elements, dim)
    shape, at = shape_of(taken), [dim, dim + 1]
    if not (table.weights == 1)[table.real].all():
        taken = b.mul(taken, b.broadcast_in_dim(b.array(table.weights, dtype_of(x)), shape, at))
    if not table.real.all():
        taken = b.select(b.broadcast_in_dim(b.array(table.real, "i1"), shape, at), taken, full(b, 0, taken))
    if shape[dim + 1] == 1:
        return b.reshape(taken, (*shape[: dim + 1], *shape[dim + 2 :]))
    return b.reduce("add", taken, [dim + 1])
