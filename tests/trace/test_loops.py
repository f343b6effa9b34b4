"""Repeated blocks are found in long traces, and only where they are steps."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from lazytpu.trace import loops
from lazytpu.trace.trie import Record, State


def record(op: str, backward: bool = False, in_step: bool = True) -> Record:
    return Record(op, {}, (), (), {}, (), op, in_backward=backward, in_step=in_step)


STEP = [
    record("forward"),
    record("forward"),
    record("loss"),
    record("grad", True),
    record("grad", True),
    record("sub_"),
]
START = [record("randn"), record("forward"), record("zeros")]


def test_a_loop_begins_after_what_came_before_it() -> None:
    records = [*START, *chain.from_iterable(repeat(STEP, 5))]
    assert loops.find(records) == (3, 6)
    assert loops.find(records[:-2]) == (3, 6), "in the middle of a block"


def test_few_repetitions_or_a_short_part_of_the_trace_are_no_loop() -> None:
    assert loops.find([*START, *STEP, *STEP, *STEP]) is None
    assert loops.find([*(record(f"op {i}") for i in range(60)), *chain.from_iterable(repeat(STEP, 5))]) is None
    assert loops.find([record(f"op {i}") for i in range(50)]) is None


@pytest.mark.parametrize("backward", [False, True])
def test_layers_repeat_within_a_step(monkeypatch: pytest.MonkeyPatch, backward: bool) -> None:
    records = [record(op, backward) for _ in range(20) for op in ("norm", "linear", "add")]
    assert loops.find(records) is None
    monkeypatch.setattr(loops, "PLAIN", 60)
    assert loops.find(records) == (0, 3), "in a trace that long, layers may be cut apart"


def test_what_repeats_outside_of_a_step_is_no_layer() -> None:
    records = [record(op, in_step=False) for _ in range(20) for op in ("mul", "add")]
    assert loops.find(records) == (0, 2)
    assert loops.find([*records, record("forward")]) is None


def test_traces_end_where_blocks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "FIRST", 32)
    state = State(None, None, None, 0, 0, 0)
    ends = []
    for each in [*START, *chain.from_iterable(repeat(STEP, 12))]:
        state = State(state, each, None, 0, 0, 0)
        loops.watch(state)
        if state.ends:
            ends.append(state.depth)
    assert ends[0] > 32
    assert all((depth - 3) % 6 == 0 for depth in ends)
    assert len(ends) >= 5
