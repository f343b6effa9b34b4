"""The links between the chips of a collective's group: a torus in each slice, and the data center's network between
slices.

Chips form a line in each dimension. It is a ring, with wrap-around links, if the slice has `Generation.ring` chips
there, or a multiple of it for generations of cubes (https://jax-ml.github.io/scaling-book/tpus/). A group uses the
links of all dimensions in which it extends at once. A chip that takes part has two links in a ring. At the end of a
line it has one, which bounds the whole line. Groups that interleave in one line share its links.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from lazytpu.passes.generations import Generation
from lazytpu.runtime.tpu.coordinates import coordinates
from lazytpu.runtime.tpu.topology import Topology

HOP = 1e-6
"Seconds for each chip on the way (https://jax-ml.github.io/scaling-book/sharding/: about 1 us)."
FREE_HOPS = 2
"Hops that the latency of a collective includes."
CORES = 6.0
"""Bandwidth between the two devices of a chip of tpu7x, in links: six times that of a link by
https://cloud.google.com/tpu/docs/tpu7x."""


@dataclass(frozen=True, slots=True)
class Links:
    """The links of one device in a group: bytes per second of all that it uses at once, in one direction, and the hops
    between the group's most distant chips."""

    bandwidth: float
    hops: int

    @property
    def latency(self) -> float:
        """Seconds that the hops add to a collective's latency."""
        return HOP * max(0, self.hops - FREE_HOPS)


def one_way(facts: Generation) -> float:
    """Return the bytes per second of one link in one direction."""
    return facts.ici_bandwidth / facts.ici_links / 2


@lru_cache(maxsize=256)
def links_of(group: tuple[int, ...], topology: Topology, facts: Generation) -> Links:
    """Return the links of a group of devices of one slice, by their numbers."""
    places = [coordinates(topology, device) for device in group]
    bandwidth, hops = 0.0, 0
    for name, size in zip("xyz", topology.shape, strict=False):
        along = sorted({place[name] for place in places})
        if len(along) == 1:
            continue
        whole = len(along) == size
        ring = whole and facts.wraps(size)
        span = size if ring else along[-1] - along[0] + 1
        bandwidth += one_way(facts) * (2 if ring else 1) * len(along) / span
        hops += span // 2 if ring else span - 1
    return Links(bandwidth or CORES * one_way(facts), hops)
