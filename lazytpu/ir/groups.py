"""Groups of devices, as the property of a collective: lists of device numbers, or the axes of a mesh.

A group along the axes of a mesh is a formula. Its text, its memory, and the time to check it do not depend on the
number of devices:

    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    groups = mesh [2, 4] axes [1]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import TypeAlias, overload

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr
from xdsl.ir import Attribute
from xdsl.parser import Parser
from xdsl.utils.hints import isa

from lazytpu.ir.types import int_array, ints

LISTS = ArrayAttr.constr()
"A property that is a list of lists of integers, or a list of one mesh."

Groups: TypeAlias = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class MeshGroups(Sequence[Sequence[int]]):
    """The groups of devices that differ only in their coordinates along `axes` of a mesh.

    `mesh` has the sizes of the mesh, major first: devices are numbered in row-major order. In a group the last of
    `axes` varies fastest. MeshGroups((2, 2), (0,)) is [[0, 2], [1, 3]].

    Raises ValueError unless all sizes are positive, and the axes are distinct axes of the mesh.
    """

    mesh: tuple[int, ...]
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        valid = all(0 <= axis < len(self.mesh) for axis in self.axes) and len(set(self.axes)) == len(self.axes)
        if not valid or not self.mesh or min(self.mesh) < 1:
            raise ValueError(f"groups are {self}; expected positive sizes, and distinct axes of that mesh")

    @property
    def devices(self) -> int:
        """The number of devices in all groups."""
        return prod(self.mesh)

    @property
    def size(self) -> int:
        """The number of devices in each group."""
        return prod(self.mesh[axis] for axis in self.axes)

    def stride(self, axis: int) -> int:
        """The difference of the numbers of neighbours along an axis."""
        return prod(self.mesh[axis + 1 :])

    def along(self, mesh: Sequence[int]) -> MeshGroups:
        """The same groups along axes of a finer mesh (`common_mesh`)."""
        axes: list[int] = []
        finer = MeshGroups(tuple(mesh), ())
        for axis in self.axes:
            low, high = self.stride(axis), self.stride(axis) * self.mesh[axis]
            axes.extend(i for i in range(len(mesh)) if low <= finer.stride(i) < high)
        return MeshGroups(tuple(mesh), tuple(axes))

    def __len__(self) -> int:
        return self.devices // self.size

    @overload
    def __getitem__(self, index: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, ...] | list[tuple[int, ...]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        remaining = range(len(self))[index]  # raises IndexError
        first = 0
        for axis in reversed(range(len(self.mesh))):
            if axis not in self.axes:
                remaining, place = divmod(remaining, self.mesh[axis])
                first += place * self.stride(axis)
        points = product(*(range(self.mesh[axis]) for axis in self.axes))
        strides = [self.stride(axis) for axis in self.axes]
        return tuple([first + sum(i * s for i, s in zip(point, strides, strict=True)) for point in points])

    def __str__(self) -> str:
        return f"mesh {list(self.mesh)} axes {list(self.axes)}"


def common_mesh(meshes: Iterable[Sequence[int]]) -> tuple[int, ...] | None:
    """The coarsest mesh along whose axes lie all axes of some meshes of the same devices; None if there is none, as of
    [2, 3] and [3, 2]."""
    strides = sorted({prod(mesh[axis:]) for mesh in meshes for axis in range(len(mesh) + 1)})
    pairs = list(pairwise(strides))
    if any(high % low for low, high in pairs):
        return None
    return tuple([high // low for low, high in reversed(pairs)]) or (1,)


def lists_attr(lists: Groups) -> Attribute:
    """The property that holds lists of integers, or groups along the axes of a mesh."""
    if isinstance(lists, MeshGroups):
        return ArrayAttr([DictionaryAttr({"mesh": int_array(lists.mesh), "axes": int_array(lists.axes)})])
    return ArrayAttr([int_array(values) for values in lists])


def lists_of(prop: Attribute) -> Groups:
    """The lists of integers of a property, or its groups along the axes of a mesh."""
    if not isa(prop, ArrayAttr[Attribute]):
        raise ValueError(f"expected a list of lists of integers, got {prop}")
    if len(prop) == 1 and isinstance(prop.data[0], DictionaryAttr):
        fields = prop.data[0].data
        if set(fields) != {"mesh", "axes"}:
            raise ValueError(f"expected groups along the axes of a mesh, got {prop}")
        return MeshGroups(ints(fields["mesh"]), ints(fields["axes"]))
    return tuple([ints(values) for values in prop])


def shown(lists: Groups) -> str:
    """The text of lists or groups."""
    return str(lists) if isinstance(lists, MeshGroups) else str([list(values) for values in lists])


def parse_lists(parser: Parser) -> Attribute:
    """Parse the text of `shown`."""

    def numbers() -> list[int]:
        return parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)

    if parser.parse_optional_keyword("mesh") is None:
        return lists_attr(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, numbers))
    mesh = numbers()
    parser.parse_keyword("axes")
    position = parser.pos
    try:
        return lists_attr(MeshGroups(tuple(mesh), tuple(numbers())))
    except ValueError as error:
        parser.raise_error(str(error), position, parser.pos)


def check_groups(groups: Groups) -> int:
    """The number of devices in a group. Raises ValueError unless groups have equal sizes and partition the devices 0 to
    n-1."""
    if isinstance(groups, MeshGroups):  # which are a partition
        return groups.size
    sizes = {len(group) for group in groups}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"groups are {shown(groups)}; expected at least one, all of one size")
    devices = sorted(device for group in groups for device in group)
    if devices != list(range(len(devices))):
        raise ValueError(f"groups are {shown(groups)}; expected each device from 0 to {len(devices) - 1} once")
    return sizes.pop()


def devices_of(lists: Groups) -> int:
    """The number of devices that a module needs for these groups or pairs."""
    return lists.devices if isinstance(lists, MeshGroups) else 1 + max(max(values) for values in lists)


def mesh_groups(mesh: Mapping[str, int], axes: Iterable[str]) -> list[list[int]]:
    """The groups of devices that differ only in their coordinates along `axes` of a mesh.

    `mesh` maps each axis to its size, major first: devices are numbered in row-major order, and in a group the last of
    `axes` varies fastest. mesh_groups({"data": 2, "model": 2}, ["data"]) is [[0, 2], [1, 3]].
    """
    inside, names = list(axes), list(mesh)
    unknown = [axis for axis in inside if axis not in mesh]
    if unknown or len(set(inside)) != len(inside):
        raise ValueError(f"axes are {inside}; expected distinct axes of the mesh {dict(mesh)}")
    return [list(group) for group in MeshGroups(tuple(mesh.values()), tuple(map(names.index, inside)))]
