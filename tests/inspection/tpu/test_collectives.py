"""Which ops are collectives, and how long they occupy the links."""

from __future__ import annotations

import pytest

from lazytpu.inspection.tpu.collectives import LATENCY, Collective, collective, seconds
from lazytpu.passes.generations import GENERATIONS
from tests.inspection.tpu.recorded import hlo, parsed

V6E = GENERATIONS["v6e"]


@pytest.mark.parametrize(
    ("module", "name", "expected"),
    [
        ("collectives", "all-reduce.0", Collective("all-reduce", 4, 1024 * 512 * 4)),
        ("collectives", "all-gather.0", Collective("all-gather", 4, 1024 * 512 * 2)),
        ("collectives", "collective-permute-start", Collective("collective-permute", 2, 256 * 512 * 2)),
        ("sparsecore", "all-reduce.4.cloned.1.call-start", Collective("all-reduce", 4, 1024 * 512 * 4)),
        ("sparsecore", "all-gather.4.cloned.1.call-start", Collective("all-gather", 4, 1024 * 512 * 2)),
        ("sparsecore", "fusion", None),
        ("sparsecore", "copy-start", None),
    ],
)
def test_collectives_are_recognised(module: str, name: str, expected: Collective | None):
    entry = hlo(module).entry
    assert collective(hlo(module), entry, entry.by_name[name], 4) == expected


@pytest.mark.parametrize(("groups", "members"), [("{{0,1},{2,3}}", 2), ("[2,8]<=[16]", 8), (None, 16)])
def test_the_number_of_members(groups: str | None, members: int):
    attribute = f", replica_groups={groups}" if groups else ""
    text = f"""HloModule m

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}}

ENTRY %e (p: f32[32]) -> f32[8] {{
  %p = f32[32]{{0}} parameter(0)
  ROOT %r = f32[8]{{0}} reduce-scatter(%p), dimensions={{0}}{attribute}, to_apply=%add
}}
"""
    module = parsed(text)
    assert collective(module, module.entry, module.entry.ops[-1], 16) == Collective("reduce-scatter", members, 128)


HALVES = """HloModule m

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

%all-reduce-scatter.3 (p: f32[32]) -> f32[8] {
  %p = f32[32]{0} parameter(0)
  %a = f32[32]{0} all-reduce(%p), replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %s = f32[8]{0} slice(%a), slice={[0:8]}
}

%all-gather.3 (p: f32[8]) -> f32[32] {
  %p = f32[8]{0} parameter(0)
  %c = f32[] constant(0)
  %w = f32[32]{0} pad(%p, %c), padding=0_24
  ROOT %a = f32[32]{0} all-reduce(%w), replica_groups={{0,1},{2,3}}, to_apply=%add
}

%all-reduce.9 (p: f32[32]) -> f32[32] {
  %p = f32[32]{0} parameter(0)
  ROOT %n = f32[32]{0} negate(%p)
}

ENTRY %e (p: f32[32]) -> f32[32] {
  %p = f32[32]{0} parameter(0)
  %half = f32[8]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.3
  %other = f32[32]{0} fusion(%half), kind=kCustom, calls=%all-gather.3
  ROOT %named = f32[32]{0} fusion(%other), kind=kCustom, calls=%all-reduce.9
}
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("half", Collective("reduce-scatter", 2, 128)),
        ("other", Collective("all-gather", 2, 128)),
        ("named", Collective("all-reduce", 4, 128)),  # without groups: all devices
    ],
)
def test_a_collective_may_be_a_fusion_of_that_name(name: str, expected: Collective):
    """Half of a split all-reduce contains the whole one, and is identified only by its name."""
    module = parsed(HALVES)
    assert collective(module, module.entry, module.entry.by_name[name], 4) == expected


@pytest.mark.parametrize(
    ("kind", "share"),
    [("all-reduce", 1.5), ("all-gather", 0.75), ("reduce-scatter", 0.75), ("all-to-all", 0.375)],
)
def test_a_ring_of_four(kind: str, share: float):
    """A v6e has 200 GB/s in a ring of two of its four links: 800 GB/s over all, in both directions."""
    assert seconds(kind, 2e8, 4, V6E) == pytest.approx(share * 1e-3 + LATENCY)


def test_a_permutation_has_one_link_in_one_direction():
    assert seconds("collective-permute", 1e8, 2, V6E) == pytest.approx(1e-3 + LATENCY)


def test_one_device_waits_for_nobody():
    assert seconds("all-reduce", 1e9, 1, V6E) == 0
