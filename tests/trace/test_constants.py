"""Constants of a trace: which values are constants, their keys, and the recorder's reads of them."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from lazytpu.trace import constants
from lazytpu.trace.constants import Constant, constant, cuts, key_of
from lazytpu.trace.loops import FIRST as LOOP
from lazytpu.trace.pending import Trace
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import Number, Operand, Record, State
from lazytpu.trace.value import EMPTY, Layout, Value, resident
from tests.trace.memory import Memory, give_memory

FOUR = Layout("f32", (4,), (1,))
LARGE = Layout("f32", (constants.LITTLE + 1,), (1,))


class Session:
    """A recorder of ops on one kind of array. A cut gives live values memory, and `answers` are the computed
    constants."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.answers: dict[Any, Memory | None] = {}
        self.failure: Exception | None = None
        self.impossible = False
        self.computed: list[tuple[list[str], int]] = []
        self.recorder = Recorder(State(None, None, None, 0, 0, 0), self.run, answers=self)

    def run(self, trace: Trace) -> None:
        self.traces.append(trace)
        give_memory(trace)

    def answer(self, key: Any, trace: Trace, slot: int) -> Memory | None:
        if self.failure is not None:
            raise self.failure
        if key not in self.answers:
            self.computed.append((names(trace.state), slot))
            self.answers[key] = None if self.impossible else Memory(f"answer {len(self.answers)}")
        return self.answers[key]

    def read(self, value: Value) -> None:
        """Read a value, as the frontend does."""
        self.recorder.answer(value)
        self.recorder.read(value)

    def record(
        self,
        name: str,
        *values: Value,
        number: Any = None,
        layout: Layout = FOUR,
        rng: bool = False,
        result: Any = True,
    ) -> Any:
        r = self.recorder
        parent = r.state
        empty = {id(v): v.buffer is EMPTY for v in values}
        tokens = tuple(v.slot if v.epoch == r.epoch else r.admit(v) for v in values)
        arguments: dict[str, Any] = {f"x{i}": Operand(v.slot, None) for i, v in enumerate(values)}
        if number is not None:
            arguments["number"] = Number(len(r.numbers), type(number))
            r.numbers.append(number)
        first = len(r.numbers) if rng else None
        r.numbers.extend([1, 2] if rng else [])
        key: tuple[Any, ...] = (name, tokens, type(number), rng, layout, result)
        state = parent.next.get(key)
        if state is None:
            new = [v for v in dict.fromkeys(values) if v.slot >= parent.slots]
            admitted = tuple((v.slot, v.layout, empty[id(v)]) for v in new)
            outs, slots = ((layout,), (r.slots,)) if result else ((), ())
            record = Record(name, arguments, outs, slots, {}, admitted, "line", first)
            state = State(parent, record, layout, r.slots + len(outs), len(r.buffers), len(r.numbers))
            parent.add(key, state)
        r.state = state
        return r.produce(layout) if result else None

    def constant_of(self, value: Value) -> Constant | None:
        return constant(self.recorder.state, value.slot)


def names(state: State) -> list[str]:
    return [record.op for record in state.records()]


def test_a_read_of_a_constant_cuts_nothing() -> None:
    session = Session()
    r = session.recorder
    x = session.record("model", resident(FOUR, Memory()))
    filled = session.record("fill", resident(FOUR, EMPTY), number=2.0)
    condition = session.record("all", filled)
    y = session.record("more", x, filled)
    state = r.state
    session.read(condition)
    assert session.computed == [(["fill", "all"], 2)], "by itself"
    assert condition.buffer.host == "answer 0"
    assert (r.state, len(session.traces), list(r.cuts)) == (state, 0, [])
    assert (x.buffer, filled.buffer, y.buffer) == (None, None, None)
    assert r.values[condition.slot]() is None, "the trace's program need not compute it"
    r.cut()
    assert names(session.traces[0].state) == ["model", "fill", "all", "more"]
    assert condition.buffer.host == "answer 0", "it keeps what was read"


def test_a_read_constant_is_an_input_and_still_a_constant() -> None:
    session = Session()
    r = session.recorder
    first = session.record("fill", resident(FOUR, EMPTY), number=2.0)
    session.read(first)
    two = session.record("twice", first)
    assert r.buffers == [first.buffer]
    session.read(two)
    assert session.computed == [(["fill"], 1), (["twice"], 1)]
    r.cut()
    three = session.record("thrice", first)
    session.read(three)
    assert session.computed[2] == (["thrice"], 1), "also when the trace it was made in is over"
    assert [cut.cause for cut in r.cuts] == []


def test_the_second_read_is_cached() -> None:
    session = Session()
    r = session.recorder
    for number in (2.0, 3.0, 2.0, 3.0, 2):
        constant = session.record("fill", resident(FOUR, EMPTY), number=number)
        session.read(constant)
        r.cut()
    assert len(session.computed) == 3, "numbers count by their types and values"


@pytest.mark.parametrize("why", ["input", "random", "check", "large", "many", "far", "much"])
def test_not_a_constant(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    r = session.recorder
    value = session.record("fill", resident(FOUR, EMPTY), number=2.0, layout=LARGE if why == "large" else FOUR)
    if why == "input":
        value = session.record("add", value, resident(FOUR, Memory()))
    if why == "random":
        value = session.record("draw", value, rng=True)
    if why == "check":
        session.record("check", value, result=False)
    for _ in range(constants.RECORDS if why == "many" else 0):
        value = session.record("step", value)
    for _ in range(constants.REACH if why == "far" else 0):
        session.record("other", resident(FOUR, Memory()))
    if why == "much":
        monkeypatch.setattr(constants, "ELEMENTS", 6)
    session.read(value)
    assert session.computed == []
    assert [cut.cause for cut in r.cuts] == ["host read"]


def test_a_finished_step_stays_pending() -> None:
    session = Session()
    r = session.recorder
    x = session.record("model", resident(FOUR, Memory()))
    constant = session.record("fill", resident(FOUR, EMPTY), number=2.0)
    r.end()
    ended = r.state
    session.read(constant)
    assert constant.buffer.host and x.buffer is None and r.state is ended


def test_parts_of_different_traces_are_computed_alike() -> None:
    session = Session()
    first = session.constant_of(session.record("fill", resident(FOUR, EMPTY), number=2.0))
    session.record("model", resident(FOUR, Memory()))
    second = session.constant_of(session.record("fill", resident(FOUR, EMPTY), number=2.0))
    assert first and second and first.way == second.way
    assert first.part.numbers == (0,) and second.part.numbers == (1,)


def test_numbers_count_by_their_bits() -> None:
    session = Session()
    two_ones = session.constant_of(session.record("fill", resident(FOUR, EMPTY), number=2.0))
    assert two_ones
    payload = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    numbers = [0.0, -0.0, math.nan, payload, 0, False, complex(0.0, -0.0), complex(0.0, 0.0)]
    keys = [key_of(two_ones, [], [number]) for number in numbers]
    assert len(set(keys)) == len(numbers)
    assert key_of(two_ones, [], [math.nan]) == keys[2]
    first, two = Memory("a"), Memory("a")
    assert key_of(two_ones, [first], []) != key_of(two_ones, [two], []), "and inputs by who they are"


def test_a_loop_that_nothing_else_cuts_is_cut_by_its_reads() -> None:
    session = Session()
    computation = session.constant_of(session.record("fill", resident(FOUR, EMPTY), number=2.0))
    assert computation
    first_reads: dict[Any, int] = {}
    assert not cuts(computation, first_reads, 5)
    assert not cuts(computation, first_reads, 5 + LOOP), "as where layers look at the same mask"
    assert cuts(computation, first_reads, 6 + LOOP)


def test_a_trace_computes_a_limited_number_of_constants() -> None:
    session = Session()
    r = session.recorder
    value = resident(FOUR, EMPTY)
    for _ in range(constants.WAYS):
        value = session.record("step", value)
        session.read(session.record("sum", value))
    assert len(session.computed) == constants.WAYS and not r.cuts
    value = session.record("step", value)
    session.read(session.record("sum", value))
    assert len(session.computed) == constants.WAYS and len(r.cuts) == 1
    assert value.buffer is not None and value.buffer.host is None, "the loop goes on with what it has"
    session.read(session.record("sum", session.record("step", value)))
    assert len(session.computed) == constants.WAYS and len(r.cuts) == 2


def test_a_failure_leaves_the_trace_as_it_was() -> None:
    session = Session()
    r = session.recorder
    read = session.record("fill", resident(FOUR, EMPTY), number=2.0)
    session.failure = RuntimeError("failed")
    with pytest.raises(RuntimeError, match="failed"):
        session.read(read)
    session.failure = None
    assert read.buffer is None and read.epoch == r.epoch
    session.read(read)
    assert read.buffer.host


def test_an_uncomputable_constant_is_read_with_a_cut() -> None:
    session = Session()
    r = session.recorder
    read = session.record("fill", resident(FOUR, EMPTY), number=2.0)
    session.impossible = True
    session.read(read)
    assert read.buffer is not None and read.buffer.host is None
    assert [cut.cause for cut in r.cuts] == ["host read"]
