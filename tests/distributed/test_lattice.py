"""Groups of an imagined job, read as axes of a mesh of its ranks."""

from __future__ import annotations

import random
from itertools import permutations

import numpy as np
import pytest

from lazytpu.distributed.lattice import Lattice, lattice_of
from lazytpu.ir.groups import MeshGroups


@pytest.mark.parametrize(
    ("members", "size", "mesh", "axes"),
    [
        (range(8), 8, (8,), (0,)),
        ((0,), 1, (1,), ()),
        ((3,), 8, (8,), ()),
        ((2, 3), 8, (4, 2), (1,)),
        ((1, 3, 5, 7), 8, (4, 2), (0,)),
        ((1, 3), 8, (2, 2, 2), (1,)),
        ((0, 1, 4, 5), 8, (2, 2, 2), (0, 2)),
        ((0, 4, 1, 5), 8, (2, 2, 2), (2, 0)),
        (range(3840, 4096), 4096, (16, 256), (1,)),
    ],
)
def test_groups_lie_along_axes(
    members: range | tuple[int, ...], size: int, mesh: tuple[int, ...], axes: tuple[int, ...]
):
    assert lattice_of(list(members), size) == Lattice(mesh, axes)


@pytest.mark.parametrize("seed", range(20))
def test_all_groups_of_a_mesh_have_the_same_formula(seed: int):
    draw = random.Random(seed)
    shape = tuple(draw.choice((2, 3, 4)) for _ in range(draw.randrange(1, 5)))
    ranks = np.arange(np.prod(shape)).reshape(shape)
    order = draw.choice(list(permutations(range(len(shape)))))
    inside = order[: draw.randrange(1, len(shape) + 1)]
    outside = [axis for axis in range(len(shape)) if axis not in inside]
    groups = ranks.transpose(*outside, *inside).reshape(-1, np.prod([shape[axis] for axis in inside])).tolist()
    formulas = {lattice_of(group, ranks.size) for group in groups}
    (formula,) = formulas
    assert sorted(map(list, MeshGroups(formula.mesh, formula.axes))) == sorted(groups)
    assert all(formula.place(rank) == place for group in groups for place, rank in enumerate(group))


@pytest.mark.parametrize("members", [(0, 1, 2), (1, 2), (0, 1, 3, 4), (0, 2, 1), (3, 2, 1, 0), (0, 0), (0, 1, 5)])
def test_other_groups_are_refused(members: tuple[int, ...]):
    with pytest.raises(NotImplementedError, match="lie along no axes of a mesh of the imagined job's 8 ranks"):
        lattice_of(members, 8)
