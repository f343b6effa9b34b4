"""Memory: whether a program fits, and the temporaries at its peak."""

from __future__ import annotations

from dataclasses import replace

from lazytpu.inspection.tpu.memory import memory_use, temporaries
from tests.inspection.tpu.recorded import MEMORY, hlo, text

CAPACITY = 32 * 10**9


def test_temporaries_live_from_their_op_to_their_last_use():
    """Buffers of collectives on the SparseCore live until the collectives are awaited."""
    module = hlo("sparsecore")
    use = memory_use(module, MEMORY, text("sparsecore.buffers"), CAPACITY)
    reduced = use.temporaries[0]  # the gathered one is a result by then
    assert (reduced.op, reduced.bytes) == ("all-reduce.3", 1024 * 512 * 4)
    every = {temporary.op: temporary.bytes for temporary in temporaries(module, text("sparsecore.buffers"))}
    assert every["all-gather.3"] == 1024 * 512 * 2
    places = {op.name: place for place, op in enumerate(module.entry.ops)}
    assert reduced.first == places["all-reduce.4.cloned.1.call-start"]
    assert reduced.last == places["all-reduce.4.cloned.1.call-done"]


def test_memory_over_time_rises_and_falls():
    use = memory_use(hlo("sparsecore"), MEMORY, text("sparsecore.buffers"), CAPACITY)
    assert use.over_time[-1][1] == 0
    assert max(used for _, used in use.over_time) == sum(temporary.bytes for temporary in use.temporaries)
    assert [at for at, _ in use.over_time] == sorted(at for at, _ in use.over_time)


def test_arguments_and_results_are_not_temporaries():
    use = memory_use(hlo("step"), MEMORY, text("step.buffers"), CAPACITY)
    descriptors = {"copy-start", "copy-start.1", "copy-start.2"}
    assert {temporary.op for temporary in use.temporaries} <= descriptors
    assert sum(temporary.bytes for temporary in use.temporaries) < 100


def test_a_program_may_be_too_large():
    use = memory_use(hlo("step"), MEMORY, "", CAPACITY)
    assert use.fits and use.temporaries == () and use.over_time == ()
    assert not memory_use(hlo("step"), replace(MEMORY, temporaries=CAPACITY), "", CAPACITY).fits


def test_values_that_a_loop_carries_are_values():
    value = next(line for line in text("sparsecore.buffers").splitlines() if line.startswith(" value: <"))
    carried = text("sparsecore.buffers").replace(value, value.replace(" @", " (phi) @", 1))
    assert carried != text("sparsecore.buffers")
    assert temporaries(hlo("sparsecore"), carried) == temporaries(hlo("sparsecore"), text("sparsecore.buffers"))
