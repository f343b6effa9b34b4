"""Meshes along the rings of a torus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import lazytpu
from lazytpu.distributed import mesh
from lazytpu.distributed.lattice import lattice_of
from lazytpu.distributed.rings import ranks_along_rings
from lazytpu.inspection.tpu.links import links_of
from lazytpu.passes.generations import GENERATIONS
from lazytpu.runtime.tpu import topologies
from lazytpu.runtime.tpu.coordinates import coordinates
from lazytpu.runtime.tpu.topology import Topology
from lazytpu.runtime.tpu.tpu_compiler import ALONE

LINK = 50e9  # bytes per second of a v5e's link in one direction


def groups(ranks: np.ndarray, axis: int) -> list[tuple[int, ...]]:
    return [tuple(group) for group in np.moveaxis(ranks, axis, -1).reshape(-1, ranks.shape[axis]).tolist()]


@pytest.mark.parametrize(
    ("name", "shape", "directions"),
    [
        ("v5e:16x16", (16, 16), (2, 2)),
        ("v5e:16x16", (256,), (4,)),
        ("v5e:8x16", (16, 8), (2, 1)),
        ("v5p:16x16x16", (16, 256), (2, 4)),
        ("v5p:4x4x8", (8, 16), (2, 4)),
    ],
)
def test_axes_are_rings_where_sizes_permit(name: str, shape: tuple[int, ...], directions: tuple[int, ...]):
    topology = Topology.parse(name)
    facts = GENERATIONS[topology.generation]
    one_way = facts.ici_bandwidth / facts.ici_links / 2
    ranks = ranks_along_rings(topology, shape)
    for axis, count in enumerate(directions):
        bandwidths = {links_of(group, topology, facts).bandwidth for group in groups(ranks, axis)}
        assert bandwidths == {count * one_way}


def test_ranks_in_order_share_links():
    topology = Topology.parse("v5e:16x16")
    ordered = np.arange(256).reshape(16, 16)
    columns = links_of(groups(ordered, 0)[0], topology, GENERATIONS["v5e"])
    assert columns.bandwidth < LINK


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("v5e:16x16", (4, 64)),
        ("v5e:16x16", (2, 8, 16)),
        ("v5p:8x8x8", (16, 32)),
        ("v5e:4x4*2", (4, 8)),
        ("tpu7x:2x2x2", (4, 4)),
    ],
)
def test_every_device_is_in_the_mesh_once_and_groups_have_formulas(name: str, shape: tuple[int, ...]):
    ranks = ranks_along_rings(Topology.parse(name), shape)
    assert ranks.shape == shape and sorted(ranks.reshape(-1)) == list(range(ranks.size))
    for axis in range(len(shape)):
        assert len({lattice_of(group, ranks.size) for group in groups(ranks, axis)}) == 1


def test_first_axis_covers_the_slices():
    topology = Topology.parse("v5e:4x4*2")
    ranks = ranks_along_rings(topology, (2, 4, 4))
    slices = np.vectorize(lambda rank: coordinates(topology, rank)["slice"])(ranks)
    assert (slices[0] == 0).all() and (slices[1] == 1).all()
    with pytest.raises(ValueError, match=r"the first axis of the mesh \[1, 32\] must be a multiple of the 2 slices"):
        ranks_along_rings(topology, (1, 32))
    with pytest.raises(ValueError, match=r"a mesh of \[3, 3\] has 9 ranks, and v5e:4x4\*2 has 32"):
        ranks_along_rings(topology, (3, 3))


JAX = """
import json, sys
from jax.experimental import mesh_utils, topologies
for text in sys.argv[1:]:
    name, shape = text.split()
    devices = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    ranks = {device: rank for rank, device in enumerate(devices)}
    mesh = mesh_utils.create_device_mesh(tuple(map(int, shape.split(","))), devices=devices)
    print(json.dumps([[ranks[device] for device in row] for row in mesh.tolist()]))
"""
ALIKE = ("v5e:16x16 16,16", "v6e:8x16 8,16", "v5p:4x4x4 4,16")


def test_groups_are_those_of_jax():
    """jax.experimental.mesh_utils lays out the same groups of chips."""
    printed = subprocess.run(
        [sys.executable, "-c", JAX, *ALIKE], env={**os.environ, **ALONE}, check=True, capture_output=True, text=True
    ).stdout
    for text, line in zip(ALIKE, printed.splitlines()[-len(ALIKE) :], strict=True):
        theirs = np.array(json.loads(line))
        ours = ranks_along_rings(Topology.parse(text.split()[0]), theirs.shape)
        for axis in range(2):
            assert sorted(map(sorted, groups(ours, axis))) == sorted(map(sorted, groups(theirs, axis)))


def test_mesh_of_an_imagined_job():
    with lazytpu.imagined_job(topology="v5e:16x16") as job:
        laid = mesh((16, 16), ("data", "model"))
        assert job.ranks == dist.get_world_size() == 256
        assert laid.mesh_dim_names == ("data", "model")
        assert laid.mesh.tolist() == ranks_along_rings(Topology.parse("v5e:16x16"), (16, 16)).tolist()
        with pytest.raises(ValueError, match=r"a mesh of \[16, 8\] has 128 ranks, and the job has 256"):
            mesh((16, 8))
    with lazytpu.imagined_job(ranks=8):
        assert torch.equal(mesh((2, 4)).mesh, init_device_mesh("tpu", (2, 4)).mesh)


def test_topology_of_a_job_has_its_ranks():
    with pytest.raises(ValueError, match=r"the job has 8 ranks, and v5e:4x4 has 16 devices"):
        lazytpu.imagined_job(ranks=8, topology="v5e:4x4")
    with pytest.raises(ValueError, match="takes the number of ranks, or the topology"):
        lazytpu.imagined_job()


class Chip:
    """A chip of a TPU in the process `process_index`."""

    device_kind = "TPU v5 lite"
    slice_index = None
    core_on_chip = 0

    def __init__(self, process_index: int, x: int, y: int) -> None:
        self.process_index, self.coords = process_index, (x, y, 0)


def test_ranks_of_a_real_job_are_found_by_their_chips(monkeypatch: pytest.MonkeyPatch):
    """Processes need not be numbered host by host."""
    chips = [Chip(7 - (4 * y + x), x, y) for x in range(4) for y in range(2)]
    client: Any = type("Client", (), {"devices": lambda self: chips})
    monkeypatch.setattr(topologies.client, "client", client)
    topology, places = topologies.places_here()
    assert str(topology) == "v5e:4x2"
    assert [dict(zip(coordinates(topology, 0), place, strict=True))["x"] for place in places] == [3, 2, 1, 0] * 2
