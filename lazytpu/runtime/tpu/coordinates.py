"""The places of a topology's devices: slice, chip and core.

Devices are numbered slice by slice, host by host and chip by chip, x first. libtpu lists them in this order, and
torchrun numbers the ranks of one process per chip in the same way. A host has 2x2 chips.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from lazytpu.runtime.tpu.topology import Topology

HOST = 2
"Chips of a host in each of the first two dimensions."


@lru_cache(maxsize=16)
def numbering(topology: Topology) -> tuple[tuple[str, int], ...]:
    """Return (dimension, size) of each digit of a device's number, the most significant first.

    The dimensions are "slice", "x", "y", "z" and "core". A dimension that hosts divide has two digits: the host's place
    and the chip's place in it.
    """
    shape = dict(zip("xyz", topology.shape, strict=False))
    local = {name: HOST if name != "z" and size % HOST == 0 else 1 for name, size in shape.items()}
    hosts = [(name, shape[name] // local[name]) for name in reversed(shape)]
    chips = [(name, local[name]) for name in reversed(shape)]
    cores = topology.devices // topology.chips
    return ("slice", topology.slices), *hosts, *chips, ("core", cores)


def coordinates(topology: Topology, device: int) -> dict[str, int]:
    """Return a device's coordinate in each dimension: "slice", "x", "y", "z" if there is one, and "core"."""
    digits = numbering(topology)
    place: dict[str, int] = {}
    for i, (name, size) in enumerate(digits):
        digit = device // prod(later for _, later in digits[i + 1 :]) % size
        place[name] = place.get(name, 0) * size + digit
    return place
