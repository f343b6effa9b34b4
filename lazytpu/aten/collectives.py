"""The collectives of process groups in the dialect (their schemas are in `lazytpu.distributed.ops`).

Each collective is a separate program, which the processes `members` run together, one replica each. So the only group
contains all replicas. An array is sent in memory order, and its parts are equal parts of its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, numpy_dtype, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def _all(members: Sequence[int]) -> list[list[int]]:
    return [list(range(len(members)))]


@rule("lazytpu_dist.all_reduce.default")
def all_reduce(b: Builder, self: SSAValue, kind: str, group: str, members: Sequence[int]) -> SSAValue:
    """The elementwise reduction by `kind`, on every member."""
    return b.all_reduce(kind, [self], _all(members))[0]


@rule("lazytpu_dist.all_gather.default")
def all_gather(b: Builder, self: SSAValue, group: str, members: Sequence[int]) -> SSAValue:
    """[n, ...]: the arrays of all members."""
    return b.all_gather(b.reshape(self, (1, *shape_of(self))), 0, _all(members))


@rule("lazytpu_dist.reduce_scatter.default")
def reduce_scatter(
    b: Builder, self: SSAValue, kind: str, size: Sequence[int], group: str, members: Sequence[int]
) -> SSAValue:
    """The own part, of shape `size`, of the reduction by `kind`."""
    rows = b.reshape(self, (len(members), prod(size)))
    return b.reshape(b.reduce_scatter(kind, rows, 0, _all(members)), tuple(size))


@rule("lazytpu_dist.all_to_all.default")
def all_to_all(b: Builder, self: SSAValue, group: str, members: Sequence[int]) -> SSAValue:
    """Part i goes to member i, and part i of the result comes from it."""
    shape, count = shape_of(self), len(members)
    rows = b.reshape(self, (count, prod(shape) // count))
    return b.reshape(b.all_to_all(rows, 0, 0, _all(members)), shape)


@rule("lazytpu_dist.broadcast.default")
def broadcast(b: Builder, self: SSAValue, root: int, group: str, members: Sequence[int]) -> SSAValue:
    """The array of member `root`."""
    return _from_bits(b, b.all_reduce("add", [_bits_of_root(b, self, root, members)], _all(members))[0], dtype_of(self))


@rule("lazytpu_dist.scatter.default")
def scatter(b: Builder, self: SSAValue, root: int, size: Sequence[int], group: str, members: Sequence[int]) -> SSAValue:
    """The part, of shape `size`, of member `root`'s array that belongs to this member."""
    rows = b.reshape(_bits_of_root(b, self, root, members), (len(members), prod(size)))
    row = b.reshape(b.reduce_scatter("add", rows, 0, _all(members)), tuple(size))
    return _from_bits(b, row, dtype_of(self))


def _integer(dtype: str) -> str:
    """The integer dtype as which the bits of a dtype are sent: a sum with zeros keeps them, whereas a sum of floats
    would turn -0.0 into 0.0."""
    return f"ui{8 * numpy_dtype(dtype).itemsize}"


def _from_bits(b: Builder, bits: SSAValue, dtype: str) -> SSAValue:
    return b.convert(bits, "i1") if dtype == "i1" else b.bitcast_convert(bits, dtype)


def _bits_of_root(b: Builder, x: SSAValue, root: int, members: Sequence[int]) -> SSAValue:
    """The bits of x as integers; zeros on all members but the root."""
    bits = b.convert(x, "ui8") if dtype_of(x) == "i1" else b.bitcast_convert(x, _integer(dtype_of(x)))
    is_root = b.compare("EQ", b.group_rank(_all(members)), b.constant(root, "i32", ()))
    shape = shape_of(bits)
    zeros = b.constant(0, dtype_of(bits), shape)
    return b.select(b.broadcast_in_dim(is_root, shape, []) if shape else is_root, bits, zeros)
