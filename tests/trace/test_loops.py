"""Repeated blocks are detected in long traces, and only where they are steps."""

from __future__ import annotations

from itertools import chain, repeat

import pytest
import torch

from lazytpu.trace import loops
from lazytpu.trace.trie import Record, State
from lazytpu.trace.value import Layout


def record(op: str, backward: bool = False, in_step: bool = True, in_graph: bool = True, takes: int = 0) -> Record:
    admitted = tuple((slot, Layout(torch.float32, (2,), (1,)), False) for slot in range(takes))
    return Record(op, {}, (), (), {}, admitted, op, in_backward=backward, in_step=in_step, in_graph=in_graph)


STEP = [
    record("forward"),
    record("forward"),
    record("loss"),
    record("grad", True, in_graph=False),
    record("grad", True, in_graph=False),
    record("sub_"),
]
START = [record("randn"), record("forward"), record("zeros")]


def test_loop_begins_after_earlier_records() -> None:
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


def test_inner_optimisation_is_part_of_a_step() -> None:
    inner = [record("forward"), record("ones", True, in_graph=False), record("grad", True), record("grad", True)]
    assert loops.find([*inner, record("sub")] * 9) is None


def test_a_block_outside_a_step_is_not_a_layer() -> None:
    records = [record(op, in_step=False) for _ in range(20) for op in ("mul", "add")]
    assert loops.find(records) == (0, 2)
    assert loops.find([*records, record("forward")]) is None


def call(norm: int, linear: int, in_graph: bool = False) -> list[Record]:
    """Return the records of a model's or layer's call that takes some values from before the trace."""
    return [record("norm", in_graph=in_graph, takes=norm), record("linear", in_graph=in_graph, takes=linear)]


def test_calls_without_a_graph_are_rounds_when_they_take_the_same_parameters() -> None:
    assert loops.find([*call(3, 2), *chain.from_iterable(repeat(call(1, 0), 9))]) == (0, 2), "one new batch a round"
    assert loops.find(call(3, 2) * 10) is None, "layers, each with its parameters"
    assert loops.find([*call(4, 2), *chain.from_iterable(repeat(call(3, 2), 9))]) is None, "layers that share a mask"
    graph = [*call(3, 2, in_graph=True), *chain.from_iterable(repeat(call(1, 0, in_graph=True), 9))]
    assert loops.find(graph) is None, "a cell of a recurrent network that is trained"


def test_traces_end_where_blocks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "FIRST", 32)
    state = State(None, None, None, 0, 0, 0)
    ends = []
    for name in [*START, *chain.from_iterable(repeat(STEP, 12))]:
        state = State(state, name, None, 0, 0, 0)
        loops.watch(state)
        if state.marks.ends:
            ends.append(state.depth)
    assert ends[0] > 32
    assert all((depth - 3) % 6 == 0 for depth in ends)
    assert len(ends) >= 5
