"""Memory: what fits, and what is in the way at the worst moment."""

from __future__ import annotations

from dataclasses import replace

from lazytpu.inspection.tpu.memory import memory_use, temporaries
from tests.inspection.tpu.recorded import MEMORY, hlo, text

CAPACITY = 32 * 10**9


def test_temporaries_live_from_their_op_to_their_last_use():
    """The buffers of collectives on the SparseCore: until these are awaited."""
    module = hlo("sparsecore")
    found = memory_use(module, MEMORY, text("sparsecore.buffers"), CAPACITY)
    reduced = found.temporaries[0]  # the gathered one has its result by then
    assert (reduced.op, reduced.bytes) == ("all-reduce.3", 1024 * 512 * 4)
    every = {each.op: each.bytes for each in temporaries(module, text("sparsecore.buffers"))}
    assert every["all-gather.3"] == 1024 * 512 * 2
    places = {op.name: place for place, op in enumerate(module.entry.ops)}
    assert reduced.first == places["all-reduce.4.cloned.1.call-start"]
    assert reduced.last == places["all-reduce.4.cloned.1.call-done"]


def test_what_is_used_over_time_comes_and_goes():
    found = memory_use(hlo("sparsecore"), MEMORY, text("sparsecore.buffers"), CAPACITY)
    assert found.over_time[-1][1] == 0
    assert max(used for _, used in found.over_time) == sum(each.bytes for each in found.temporaries)
    assert [at for at, _ in found.over_time] == sorted(at for at, _ in found.over_time)


def test_arguments_and_results_are_not_temporaries():
    found = memory_use(hlo("step"), MEMORY, text("step.buffers"), CAPACITY)
    assert {each.op for each in found.temporaries} <= {"copy-start", "copy-start.1", "copy-start.2"}  # descriptors
    assert sum(each.bytes for each in found.temporaries) < 100


def test_a_program_may_be_too_large():
    use = memory_use(hlo("step"), MEMORY, "", CAPACITY)
    assert use.fits and use.temporaries == () and use.over_time == ()
    assert not memory_use(hlo("step"), replace(MEMORY, temporaries=CAPACITY), "", CAPACITY).fits


def test_values_that_a_loop_carries_are_values():
    value = next(line for line in text("sparsecore.buffers").splitlines() if line.startswith(" value: <"))
    carried = text("sparsecore.buffers").replace(value, value.replace(" @", " (phi) @", 1))
    assert carried != text("sparsecore.buffers")
    assert temporaries(hlo("sparsecore"), carried) == temporaries(hlo("sparsecore"), text("sparsecore.buffers"))
