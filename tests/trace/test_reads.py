"""Splits of a trace by reads, and the recorder's part in them: slots, epochs, pins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lazytpu.trace.pending import Trace
from lazytpu.trace.reads import Split, split
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import Operand, Record, State
from lazytpu.trace.value import Layout, Value, resident
from tests.trace.memory import Memory, give_memory

FOUR = Layout("f32", (4,), (1,))


class Program:
    """Writes the records of unary and binary ops on one kind of array; `check` has no result."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.slots = 0
        self.known: set[int] = set()

    def input(self) -> int:
        self.slots += 1
        return self.slots - 1

    def op(self, name: str, *operands: int) -> int:
        new = [slot for slot in dict.fromkeys(operands) if slot not in self.known]
        self.known.update(new, [self.slots])
        arguments = {f"x{i}": Operand(slot, None) for i, slot in enumerate(operands)}
        admitted = tuple((slot, FOUR, False) for slot in new)
        self.records.append(Record(name, arguments, (FOUR,), (self.slots,), {}, admitted, "line"))
        self.slots += 1
        return self.slots - 1

    def check(self, name: str, *about: int) -> None:
        new = [slot for slot in dict.fromkeys(about) if slot not in self.known]
        self.known.update(new)
        arguments = {"about": [Operand(slot, None) for slot in about]}
        self.records.append(Record(name, arguments, (), (), {}, tuple((s, FOUR, False) for s in new), "line"))

    def state(self) -> State:
        state, slots, inputs = State(None, None, None, 0, 0, 0), 0, 0
        for record in self.records:
            slots += len(record.admitted) + len(record.outs)
            inputs += len(record.admitted)
            state = State(state, record, None, slots, inputs, 0)
        return state

    def taken_apart(self, slot: int, left: int = 0, boundary: int = 0) -> tuple[list[str], list[str]]:
        halves = split(self.state(), slot, left, boundary)
        assert halves is not None
        return names(halves.first.state), names(halves.rest.state)


def names(state: State) -> list[str]:
    return [record.op for record in state.records()]


@pytest.fixture
def program() -> Program:
    return Program()


def test_the_needed_part_runs_and_shared_values_are_listed(program: Program) -> None:
    x = program.input()
    a = program.op("a", x)
    y = program.input()
    b = program.op("b", y)
    c = program.op("c", a, x)
    program.op("d", a, b)
    halves = split(program.state(), c, 0, 0)
    assert halves is not None
    assert (names(halves.first.state), names(halves.rest.state)) == (["a", "c"], ["b", "d"])
    assert (halves.first.inputs, halves.rest.inputs) == ((x,), (y, a))
    assert halves.computed == ((1, halves.first.slots[a], FOUR),)
    assert halves.shared == ()


def test_a_prefix_is_the_existing_state(program: Program) -> None:
    x = program.input()
    a = program.op("a", x)
    b = program.op("b", a)
    program.op("c", a, x)
    state = program.state()
    halves = split(state, b, 0, 0)
    assert halves is not None
    assert state.parent is halves.first.state
    assert names(halves.rest.state) == ["c"]
    assert halves.shared == (0,)


def test_records_left_by_an_earlier_read_run_with_it(program: Program) -> None:
    a = program.op("a", program.input())
    program.op("b", a)
    c = program.op("c", a)
    program.op("d", c)
    assert program.taken_apart(c) == (["a", "c"], ["b", "d"])
    assert program.taken_apart(c, left=2) == (["a", "b", "c"], ["d"])


def test_a_finished_step_runs_as_a_whole(program: Program) -> None:
    a = program.op("a", program.input())
    program.op("b", a)
    c = program.op("c", a)
    assert program.taken_apart(a, boundary=2) == (["a", "b"], ["c"])
    assert program.taken_apart(c, boundary=2) == (["a", "c"], ["b"]), "not of that step"
    assert split(program.state(), c, 0, 3) is None


def test_no_split_without_pending_records_or_for_an_input(program: Program) -> None:
    x = program.input()
    a = program.op("a", x)
    b = program.op("b", a)
    assert split(program.state(), b, 0, 0) is None
    assert split(program.state(), x, 0, 0) is None, "an input is there"


def test_checks_run_with_the_next_read(program: Program) -> None:
    a = program.op("a", program.input())
    b = program.op("b", program.input())
    program.check("check b", b)
    program.op("c", b)
    assert program.taken_apart(a) == (["a", "b", "check b"], ["c"])


def test_a_backward_pass_is_not_left_pending(program: Program) -> None:
    a = program.op("a", program.input())
    program.op("b", a)
    program.records[-1] = replace(program.records[-1], in_backward=True)
    assert split(program.state(), a, 0, 0) is None
    program.op("c", a)
    assert split(program.state(), a, 0, 2) is not None, "it is of a step that is over"


class Session:
    """A recorder of unary ops, which gives live results buffers where the trace is cut, or fails."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.lost: list[Trace] = []
        self.failure: Exception | None = None
        self.root = State(None, None, None, 0, 0, 0)
        self.recorder = Recorder(self.root, self.run, lose_trace=lambda trace, error: self.lost.append(trace))

    def run(self, trace: Trace) -> None:
        self.traces.append(trace)
        give_memory(trace)
        for buffer in trace.buffers:
            buffer.pins -= 1
        if self.failure:
            raise self.failure

    def record(self, name: str, *operands: Value) -> Value:
        r = self.recorder
        parent = r.state
        tokens = tuple(v.slot if v.epoch == r.epoch else r.admit(v) for v in operands)
        key: tuple[Any, ...] = (name, *tokens)
        state = parent.next.get(key)
        if state is None:
            admitted = tuple((s, FOUR, False) for s in range(parent.slots, r.slots))
            arguments = {f"x{i}": Operand(v.slot, None) for i, v in enumerate(operands)}
            record = Record(name, arguments, (FOUR,), (r.slots,), {}, admitted, "line")
            state = State(parent, record, FOUR, r.slots + 1, len(r.buffers), 0)
            parent.add(key, state)
        r.state = state
        return r.produce(FOUR)


def test_the_recorder_goes_on_with_the_rest() -> None:
    session = Session()
    r = session.recorder
    x, y = resident(FOUR, Memory()), resident(FOUR, Memory())
    a = session.record("a", x)
    b = session.record("b", a, y)
    c = session.record("c", a, x)
    r.read(c)
    assert names(session.traces[0].state) == ["a", "c"]
    assert a.buffer is not None and b.buffer is None
    assert [buffer.pins for buffer in (x.buffer, y.buffer, a.buffer)] == [0, 1, 1]
    assert (b.epoch, b.slot, a.slot, y.slot) == (r.epoch, 2, 0, 1)
    assert r.reads.left == 1
    d = session.record("d", b, a)
    assert names(r.state) == ["b", "d"]
    r.cut()
    assert (b.buffer.pins, d.buffer.pins, a.buffer.pins, y.buffer.pins) == (0, 0, 0, 0)
    assert len(session.traces) == 2


def test_the_same_reads_meet_the_same_states() -> None:
    session = Session()
    r = session.recorder
    kept = total = resident(FOUR, Memory())
    ends: list[tuple[State, Split | None]] = []
    for _ in range(5):
        x = session.record("model", resident(FOUR, Memory()))
        total = session.record("total", total, x)
        loss = session.record("loss", x)
        end = r.state
        r.read(loss)
        ends.append((end, r.state))
    assert len({id(end) for end, _ in ends[2:]}) == 1
    assert len({id(pending) for _, pending in ends}) == 1
    assert kept is not total


def test_a_value_that_only_the_rest_needs_keeps_its_buffer() -> None:
    session = Session()
    r = session.recorder
    a = session.record("a", resident(FOUR, Memory()))
    b = session.record("b", a)
    c = session.record("c", a)
    del a
    r.read(c)
    (memory,) = r.buffers
    assert memory.pins == 1
    assert r.values[0]() is None, "dead, so that the rest may take its memory"
    r.read(b)
    assert memory.pins == 0
    assert b.buffer is not None


def test_the_rest_of_a_read_that_fails_is_given_up() -> None:
    session = Session()
    r = session.recorder
    y = resident(FOUR, Memory())
    a = session.record("a", resident(FOUR, Memory()))
    b = session.record("b", a, y)
    c = session.record("c", a)
    session.failure = RuntimeError("failed")
    with pytest.raises(RuntimeError, match="failed"):
        r.read(c)
    (lost,) = session.lost
    assert names(lost.state) == ["b"]
    assert [reference() for reference in lost.values] == [a, y, b]
    assert lost.buffers == [a.buffer, y.buffer]
    assert r.state is session.root
