"""Groups along the axes of meshes."""

from __future__ import annotations

from itertools import permutations

import pytest

from lazytpu.ir.groups import MeshGroups, common_mesh

MESHES = [(24,), (2, 12), (12, 2), (2, 3, 4), (6, 4), (2, 3, 2, 2), (1, 24), (4, 1, 6)]


@pytest.mark.parametrize("first", MESHES)
@pytest.mark.parametrize("second", MESHES)
def test_groups_along_a_common_mesh_are_the_same(first: tuple[int, ...], second: tuple[int, ...]):
    common = common_mesh([first, second])
    strides = {(2, 3, 4): 4, (6, 4): 4, (12, 2): 2, (4, 1, 6): 6}
    if common is None:
        assert strides.get(first, 0) + strides.get(second, 0) >= 6, "4 and 6 divide neither the other"
        return
    for mesh in (first, second):
        for count in range(1, len(mesh) + 1):
            for axes in permutations(range(len(mesh)), count):
                groups = MeshGroups(mesh, axes)
                assert list(groups.along(common)) == list(groups)


def test_meshes_that_cross_have_no_common_one():
    assert common_mesh([(2, 3), (3, 2)]) is None
    assert common_mesh([(2, 2, 2), (4, 2), (8,)]) == (2, 2, 2)
    assert common_mesh([(1,)]) == (1,)
