"""Links of a group: the lines and rings of a torus, and the network between slices."""

from __future__ import annotations

import pytest

from lazytpu.inspection.tpu.collectives import LATENCY, across_slices, seconds, seconds_across
from lazytpu.inspection.tpu.links import HOP, Links, links_of
from lazytpu.inspection.tpu.schedule import schedule
from lazytpu.passes.generations import GENERATIONS
from lazytpu.runtime.tpu.coordinates import coordinates
from lazytpu.runtime.tpu.topology import Topology
from tests.inspection.tpu.recorded import parsed

V5E = GENERATIONS["v5e"]
LINK = 50e9  # bytes per second of a v5e's link in one direction
POD = Topology.parse("v5e:16x16")
NUMBERS = {(p["x"], p["y"]): device for device in range(256) for p in [coordinates(POD, device)]}


def group(*chips: tuple[int, int]) -> tuple[int, ...]:
    return tuple(NUMBERS[chip] for chip in chips)


@pytest.mark.parametrize(
    ("chips", "bandwidth", "hops"),
    [
        ([(x, 3) for x in range(16)], 2 * LINK, 8),  # a ring
        ([(5, y) for y in range(16)], 2 * LINK, 8),
        ([(x, 0) for x in range(8)], LINK, 7),  # a line
        ([(x, 0) for x in range(0, 15, 2)], LINK * 8 / 15, 14),  # each second chip of it
        ([(x, y) for x in range(16) for y in range(16)], 4 * LINK, 16),
        ([(x, y) for x in range(8) for y in range(2)], 2 * LINK, 8),  # 16 ranks of torchrun
    ],
)
def test_links_of_a_group(chips: list[tuple[int, int]], bandwidth: float, hops: int):
    links = links_of(group(*chips), POD, V5E)
    assert (links.bandwidth, links.hops) == (pytest.approx(bandwidth), hops)


@pytest.mark.parametrize(
    ("topology", "ends"), [("v5e:8x8", "lines"), ("v6e:16x16", "rings"), ("v5p:2x2x4", "both"), ("v5p:4x4x4", "rings")]
)
def test_rings_of_full_pods_and_cubes(topology: str, ends: str):
    parsed_topology = Topology.parse(topology)
    facts = GENERATIONS[parsed_topology.generation]
    one_way = facts.ici_bandwidth / facts.ici_links / 2
    directions = {"lines": 1, "rings": 2}
    expected = sum(directions[ends] if ends != "both" else 1 + (size == 4) for size in parsed_topology.shape)
    links = links_of(tuple(range(parsed_topology.devices)), parsed_topology, facts)
    assert links.bandwidth == pytest.approx(expected * one_way)


def test_time_of_a_collective_is_that_of_its_links():
    nbytes = 1 << 20
    ring = links_of(group(*[(x, 0) for x in range(16)]), POD, V5E)
    assert seconds("all-gather", nbytes, 16, V5E, ring) == pytest.approx(
        nbytes * 15 / 16 / (2 * LINK) + LATENCY + 6 * HOP
    )
    assert seconds("all-reduce", nbytes, 16, V5E, Links(LINK, 0)) > seconds("all-reduce", nbytes, 16, V5E, ring)


ACROSS = """HloModule m

ENTRY %e (p: f32[1024]) -> f32[512] {
  %p = f32[1024]{0} parameter(0)
  %t = token[] after-all()
  %send = (f32[1024]{0}, u32[], token[]) send(%p, %t), channel_id=2, is_host_transfer=true
  %recv = (f32[512]{0}, u32[], token[]) recv(%t), channel_id=1, is_host_transfer=true, frontend_attributes={FRONTEND}
  %done = (f32[512]{0}, token[]) recv-done(%recv), channel_id=1, is_host_transfer=true
  ROOT %r = f32[512]{0} get-tuple-element(%done), index=0
}
"""
FRONTEND = '{_xla_megascale_target="{1,2}x{0:15}",_xla_megascale_transfer_type="REDUCE_SCATTER"}'


def test_slices_exchange_over_the_network():
    module = parsed(ACROSS.replace("{FRONTEND}", FRONTEND))
    received = across_slices(module.entry.by_name["recv"])
    assert received is not None
    assert (received.kind, received.members, received.payload, received.across) == ("reduce-scatter", 2, 4096, True)
    timeline = schedule(module, V5E, 32, Topology.parse("v5e:4x4*2"))
    (cost,) = timeline.costs
    assert (cost.bound, cost.waited) == ("network", pytest.approx(timeline.seconds))
    assert cost.waited == seconds_across("reduce-scatter", 4096, 2, V5E) > 4096 / 2 / 3.125e9
    assert {span.lane for span in timeline.spans} == {"core", "network"}
