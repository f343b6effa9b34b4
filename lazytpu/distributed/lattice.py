"""The mesh of a job in which a process group lies along some axes.

A rank of a real job knows only its own groups. A program of the whole job has the groups of all ranks. So the ranks of
a group are read as coordinates: in a job of 8 ranks, [1, 3, 5, 7] is axis 0 of the mesh [4, 2], and its groups are
[0, 2, 4, 6] and [1, 3, 5, 7].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Lattice:
    """A mesh of all ranks of a job, major first, and the axes of a group, of which the last varies fastest."""

    mesh: tuple[int, ...]
    axes: tuple[int, ...]

    def stride(self, axis: int) -> int:
        """The difference of neighbours along an axis."""
        return prod(self.mesh[axis + 1 :])

    def place(self, rank: int) -> int:
        """Return the index of a rank of the job in its group."""
        index = 0
        for axis in self.axes:
            index = index * self.mesh[axis] + rank // self.stride(axis) % self.mesh[axis]
        return index

    def group(self, first: int) -> list[int]:
        """Return the group that begins with the rank `first`; no ranks if none does."""
        if self.place(first) or first >= prod(self.mesh):
            return []
        ranks = [first]
        for axis in self.axes:
            ranks = [rank + place * self.stride(axis) for rank in ranks for place in range(self.mesh[axis])]
        return ranks


def lattice_of(members: Sequence[int], size: int) -> Lattice:
    """Return the mesh of a job of `size` ranks in which `members`, in their order, lie along some axes.

    Raises NotImplementedError if there is none.
    """
    levels = _levels([member - members[0] for member in members])
    lattice = None if levels is None else _mesh(levels, size)
    if lattice is None or lattice.group(members[0]) != list(members):
        shown = f"{', '.join(map(str, members[:8]))}{', ...' if len(members) > 8 else ''}"
        raise NotImplementedError(
            f"the ranks [{shown}] lie along no axes of a mesh of the imagined job's {size} ranks, so the groups of the "
            "other ranks are unknown. Use groups that are equally spaced and divide the job, as those of a DeviceMesh"
        )
    return lattice


def mesh_along(members: Sequence[int], size: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the mesh and the axes of `lattice_of`, or None if there are none."""
    try:
        lattice = lattice_of(members, size)
    except NotImplementedError:
        return None
    return lattice.mesh, lattice.axes


def _levels(offsets: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return (size, stride) of each axis, fastest first, along which the offsets lie; None if they lie on no axes."""
    levels: list[tuple[int, int]] = []
    block = 1
    while block < len(offsets):
        stride, size = offsets[block], 1
        while size * block < len(offsets) and offsets[size * block] == size * stride:
            size += 1
        if len(offsets) % (size * block) or stride < 1:
            return None
        levels.append((size, stride))
        block *= size
    return levels


def _mesh(levels: Sequence[tuple[int, int]], size: int) -> Lattice | None:
    """Return the mesh with these axes, and with further axes for the ranks between and beyond them."""
    mesh: list[int] = []  # fastest first
    places: dict[int, int] = {}  # level -> axis
    for level, (count, stride) in sorted(enumerate(levels), key=lambda item: item[1][1]):
        between, remainder = divmod(stride, prod(mesh))
        if remainder:
            return None
        if between > 1:
            mesh.append(between)
        places[level] = len(mesh)
        mesh.append(count)
    beyond, remainder = divmod(size, prod(mesh))
    if remainder:
        return None
    if beyond > 1 or not mesh:
        mesh.append(beyond)
    last = len(mesh) - 1
    return Lattice(tuple(reversed(mesh)), tuple([last - places[level] for level in reversed(range(len(levels)))]))
