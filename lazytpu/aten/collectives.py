"""The collectives of process groups in the dialect (their schemas are in `lazytpu.distributed.ops`).

Each collective is a separate program, which the processes `members` run together, one replica each. So the only group
contains all replicas. In an imagined job, the program has a replica for each rank of the job, and a group lies along
`axes` of the `mesh` of all ranks. An array is sent in memory order, and its parts are equal parts of its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from lazytpu.aten.registry import rule
from lazytpu.ir.groups import Groups, MeshGroups
from lazytpu.ir.types import dtype_of, numpy_dtype, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


Mesh: TypeAlias = Sequence[int]


def _groups(members: Sequence[int], mesh: Mesh, axes: Mesh) -> Groups:
    return MeshGroups(tuple(mesh), tuple(axes)) if mesh else [list(range(len(members)))]


@rule("lazytpu_dist.all_reduce.default")
def all_reduce(
    b: Builder, self: SSAValue, kind: str, group: str, members: Sequence[int], mesh: Mesh, axes: Mesh
) -> SSAValue:
    """The elementwise reduction by `kind`, on every member."""
    return b.all_reduce(kind, [self], _groups(members, mesh, axes))[0]


@rule("lazytpu_dist.all_gather.default")
def all_gather(b: Builder, self: SSAValue, group: str, members: Sequence[int], mesh: Mesh, axes: Mesh) -> SSAValue:
    """[n, ...]: the arrays of all members."""
    return b.all_gather(b.reshape(self, (1, *shape_of(self))), 0, _groups(members, mesh, axes))


@rule("lazytpu_dist.reduce_scatter.default")
def reduce_scatter(
    b: Builder,
    self: SSAValue,
    kind: str,
    size: Sequence[int],
    group: str,
    members: Sequence[int],
    mesh: Mesh,
    axes: Mesh,
) -> SSAValue:
    """The own part, of shape `size`, of the reduction by `kind`."""
    rows = b.reshape(self, (len(members), prod(size)))
    return b.reshape(b.reduce_scatter(kind, rows, 0, _groups(members, mesh, axes)), tuple(size))


@rule("lazytpu_dist.all_to_all.default")
def all_to_all(b: Builder, self: SSAValue, group: str, members: Sequence[int], mesh: Mesh, axes: Mesh) -> SSAValue:
    """Part i goes to member i, and part i of the result comes from it."""
    shape, count = shape_of(self), len(members)
    rows = b.reshape(self, (count, prod(shape) // count))
    return b.reshape(b.all_to_all(rows, 0, 0, _groups(members, mesh, axes)), shape)


@rule("lazytpu_dist.broadcast.default")
def broadcast(
    b: Builder, self: SSAValue, root: int, group: str, members: Sequence[int], mesh: Mesh, axes: Mesh
) -> SSAValue:
    """The array of member `root`."""
    groups = _groups(members, mesh, axes)
    return _from_bits(b, b.all_reduce("add", [_bits_of_root(b, self, root, groups)], groups)[0], dtype_of(self))


@rule("lazytpu_dist.scatter.default")
def scatter(
    b: Builder,
    self: SSAValue,
    root: int,
    size: Sequence[int],
    group: str,
    members: Sequence[int],
    mesh: Mesh = (),
    axes: Mesh = (),
) -> SSAValue:
    """The part, of shape `size`, of member `root`'s array that belongs to this member."""
    groups = _groups(members, mesh, axes)
    rows = b.reshape(_bits_of_root(b, self, root, groups), (len(members), prod(size)))
    row = b.reshape(b.reduce_scatter("add", rows, 0, groups), tuple(size))
    return _from_bits(b, row, dtype_of(self))


@rule("lazytpu_dist.own_part.default")
def own_part(
    b: Builder, self: SSAValue, dim: int, count: int, place: int, among: Sequence[int], mesh: Mesh, axes: Mesh
) -> SSAValue:
    """The part along `dim`, of `count` elements there, that belongs to number `place` among some ranks. A program that
    all ranks run computes that number."""
    shape = list(shape_of(self))
    if not mesh:
        starts = [place * count if i == dim else 0 for i in range(len(shape))]
        return b.slice(self, starts, [place * count + count if i == dim else n for i, n in enumerate(shape)])
    start = b.mul(b.group_rank(_groups((), mesh, axes)), b.constant(count, "i32", ()))
    starts = [start if i == dim else b.constant(0, "i32", ()) for i in range(len(shape))]
    return b.dynamic_slice(self, starts, [*shape[:dim], count, *shape[dim + 1 :]])


def _integer(dtype: str) -> str:
    """The integer dtype as which the bits of a dtype are sent: a sum with zeros keeps them, whereas a sum of floats
    would turn -0.0 into 0.0."""
    return f"ui{8 * numpy_dtype(dtype).itemsize}"


def _from_bits(b: Builder, bits: SSAValue, dtype: str) -> SSAValue:
    return b.convert(bits, "i1") if dtype == "i1" else b.bitcast_convert(bits, dtype)


def _bits_of_root(b: Builder, x: SSAValue, root: int, groups: Groups) -> SSAValue:
    """The bits of x as integers; zeros on all members but the root."""
    bits = b.convert(x, "ui8") if dtype_of(x) == "i1" else b.bitcast_convert(x, _integer(dtype_of(x)))
    is_root = b.compare("EQ", b.group_rank(groups), b.constant(root, "i32", ()))
    shape = shape_of(bits)
    zeros = b.constant(0, dtype_of(bits), shape)
    return b.select(b.broadcast_in_dim(is_root, shape, []) if shape else is_root, bits, zeros)
