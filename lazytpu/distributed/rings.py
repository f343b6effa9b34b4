"""Meshes whose axes lie along the rings of a TPU's torus (`lazytpu.distributed.mesh`).

Ranks are numbered host by host, in blocks of 2x2 chips, so that neighbours in a plain DeviceMesh are on no common line
of chips, and groups share links. Here each axis of a mesh takes whole dimensions of the torus, where sizes permit it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import gcd, prod

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from lazytpu.distributed import imagined
from lazytpu.runtime.tpu.coordinates import coordinates, numbering
from lazytpu.runtime.tpu.topology import Topology
from lazytpu.runtime.xla import client

Part = tuple[str, int, int]
"""A part of a dimension of the torus: its name, size and stride in it."""


def device_mesh(shape: Sequence[int], names: Sequence[str] | None) -> DeviceMesh:
    """Return the mesh of `lazytpu.distributed.mesh`."""
    count = dist.get_world_size() if dist.is_initialized() else prod(shape)
    if prod(shape) != count:
        raise ValueError(f"a mesh of {list(shape)} has {prod(shape)} ranks, and the job has {count}")
    ranks = torch.from_numpy(_ranks(shape))
    return DeviceMesh("tpu", ranks, mesh_dim_names=None if names is None else tuple(names))


def _ranks(shape: Sequence[int]) -> np.ndarray:
    if imagined.JOB is not None:
        topology = imagined.JOB.topology
        return np.arange(prod(shape)).reshape(shape) if topology is None else ranks_along_rings(topology, shape)
    if client.platform() != "tpu":
        return np.arange(prod(shape)).reshape(shape)
    from lazytpu.runtime.tpu.topologies import places_here  # it loads jax's description of topologies

    topology, places = places_here()
    rank_at = {place: rank for rank, place in enumerate(places)}
    numbered = [rank_at[tuple(coordinates(topology, number).values())] for number in range(topology.devices)]
    return np.array(numbered)[ranks_along_rings(topology, shape)]


def ranks_along_rings(topology: Topology, shape: Sequence[int]) -> np.ndarray:
    """Return the ranks of a mesh of this shape on a topology, one rank for each device.

    The last axes get whole dimensions first, as they communicate most. The first axis gets the slices. Raises
    ValueError if the mesh has another number of devices, or its first axis is no multiple of the slices.
    """
    if prod(shape) != topology.devices:
        raise ValueError(f"a mesh of {list(shape)} has {prod(shape)} ranks, and {topology} has {topology.devices}")
    first, remainder = divmod(shape[0], topology.slices)
    if remainder:
        raise ValueError(
            f"the first axis of the mesh {list(shape)} must be a multiple of the {topology.slices} slices of "
            f"{topology}, which only the data center's network connects"
        )
    torus = {"core": topology.devices // topology.chips}
    torus |= dict(zip("xyz", topology.shape, strict=False))
    inside = [first, *shape[1:]]
    axes = _whole(inside, torus) or _divided(inside, torus)
    axes[0] = [("slice", topology.slices, 1), *axes[0]]
    return _by_dimension(topology, axes).reshape(list(shape))


def _whole(shape: Sequence[int], torus: dict[str, int]) -> list[list[Part]] | None:
    """Return the dimensions of each axis, if each can have whole ones; the last axis is served first."""
    if not shape:
        return [] if all(size == 1 for size in torus.values()) else None
    for count in range(len(torus) + 1):
        for names in combinations(torus, count):
            if prod(torus[name] for name in names) == shape[-1]:
                others = {name: size for name, size in torus.items() if name not in names}
                before = _whole(shape[:-1], others)
                if before is not None:
                    return [*before, [(name, torus[name], 1) for name in reversed(names)]]
    return None


def _divided(shape: Sequence[int], torus: dict[str, int]) -> list[list[Part]]:
    """Return the parts of dimensions of each axis: neighbours for the last axis, then blocks of them."""
    free, strides = dict(torus), dict.fromkeys(torus, 1)
    axes: list[list[Part]] = []
    for size in reversed(shape):
        parts: list[Part] = []
        for name in sorted(free, key=lambda name: size % free[name] != 0):  # whole ones first
            shared = gcd(size, free[name])
            if shared > 1:
                parts.insert(0, (name, shared, strides[name]))
                size, free[name], strides[name] = size // shared, free[name] // shared, strides[name] * shared
        if size > 1:
            raise ValueError(f"a mesh of {list(shape)} does not divide a torus of {list(torus.values())} chips")
        axes.insert(0, parts)
    return axes


def _by_dimension(topology: Topology, axes: Sequence[Sequence[Part]]) -> np.ndarray:
    """Return the ranks with one dimension of the array for each part, in the order of the axes."""
    digits = numbering(topology)
    ranks = np.arange(topology.devices).reshape([size for _, size in digits])
    names = list(dict.fromkeys(name for name, _ in digits))
    order = [i for name in names for i, (digit, _) in enumerate(digits) if digit == name]
    sizes = [prod(size for digit, size in digits if digit == name) for name in names]
    ranks = ranks.transpose(order).reshape(sizes)
    # Split each dimension into its parts, the largest stride first, and sort the parts by axis.
    wanted = [part for parts in axes for part in parts]
    split = [part for name in names for part in sorted((p for p in wanted if p[0] == name), key=lambda p: -p[2])]
    return ranks.reshape([size for _, size, _ in split]).transpose([split.index(part) for part in wanted])
