"""The recorder alone: slots, keys, liveness, rollback and cuts, with plain objects for buffers and ops."""

from __future__ import annotations

import gc

import pytest

from lazytpu.trace.pending import Trace
from lazytpu.trace.recorder import PendingElsewhere, Recorder
from lazytpu.trace.trie import CutPlan, Operand, Record, State
from lazytpu.trace.value import EMPTY, Layout, Value, again, resident, row_major
from tests.trace.memory import Memory


class Session:
    """A recorder whose cuts are kept, and which records a unary op as a kernel does; with `of`, in the trie of another
    one."""

    def __init__(self, of: Session | None = None) -> None:
        self.traces: list[Trace] = []
        self.root = State(None, None, None, 0, 0, 0) if of is None else of.root
        self.recorder = Recorder(self.root, self.traces.append)

    def token(self, value: Value) -> object:
        r = self.recorder
        return value.slot if value.epoch == r.epoch else r.admit(value)

    def record(self, name: str, value: Value) -> Value:
        r = self.recorder
        key = (name, self.token(value))
        state = r.state.next.get(key)
        if state is None:
            parent = r.state
            admitted = tuple(
                (s, v.layout, v.buffer is EMPTY)
                for s in range(parent.slots, r.slots)
                if (v := r.values[s]()) is not None
            )
            record = Record(
                name, {"x": Operand(r.slot(value), None)}, (value.layout,), (r.slots,), {}, admitted, "test.py:1"
            )
            state = State(parent, record, value.layout, r.slots + 1, len(r.buffers), len(r.numbers))
            parent.add(key, state)
        r.state = state
        return r.produce(state.outs)


@pytest.fixture
def session() -> Session:
    return Session()


FOUR = Layout("f32", (4,), (1,))


def test_row_major_strides_follow_torch() -> None:
    assert row_major((2, 3, 4)) == (12, 4, 1)
    assert row_major(()) == ()
    assert row_major((2, 0, 3)) == (3, 3, 1)


def test_memory_shape_is_the_sizes_by_descending_stride() -> None:
    assert Layout("f32", (2, 3, 4, 5), (60, 1, 15, 3)).memory_shape == (2, 4, 5, 3)


def test_the_same_step_walks_the_same_states(session: Session) -> None:
    x = resident(FOUR, Memory())
    ends = []
    for _ in range(3):
        y = session.record("exp", session.record("neg", x))
        ends.append(session.recorder.state)
        session.recorder.cut()
        y.buffer = Memory()
    assert ends[0] is ends[1] is ends[2]
    assert [r.op for r in ends[0].records()] == ["neg", "exp"]


def test_an_input_contributes_its_layout_once_then_its_slot(session: Session) -> None:
    x = resident(FOUR, Memory())
    session.record("neg", x)
    session.record("exp", x)
    (first,) = session.root.next
    (second,) = session.root.next[first].next
    assert first == ("neg", ("f32", (4,), (1,)))
    assert second == ("exp", 0)


def test_aliasing_is_in_the_key(session: Session) -> None:
    x, y = resident(FOUR, Memory()), resident(FOUR, Memory())
    session.record("neg", x)
    session.record("exp", x)
    session.recorder.cut()
    session.record("neg", x)
    session.record("exp", y)
    (after_neg,) = session.root.next.values()
    assert set(after_neg.next) == {("exp", 0), ("exp", ("f32", (4,), (1,)))}


def test_results_are_held_weakly_and_inputs_strongly(session: Session) -> None:
    memory = Memory()
    x = resident(FOUR, memory)
    y = session.record("neg", x)
    z = session.record("exp", y)
    del x, y
    session.recorder.cut()
    (trace,) = session.traces
    plan = CutPlan.of(trace.state)
    assert plan.inputs == (0,)
    assert plan.results == (1, 2)
    assert [trace.values[s]() is not None for s in plan.results] == [False, True]
    assert trace.values[2]() is z
    assert trace.buffers == [memory]
    assert memory.pins == 1


def test_uninitialised_memory_takes_no_buffer_and_counts_as_a_result(session: Session) -> None:
    x = resident(FOUR, EMPTY)
    session.record("neg", x)
    session.recorder.cut()
    (trace,) = session.traces
    assert trace.buffers == []
    assert CutPlan.of(trace.state).results == (0, 1)


def test_rollback_drops_values_admitted_by_a_failed_record(session: Session) -> None:
    r = session.recorder
    x, y = resident(FOUR, Memory()), resident(FOUR, memory := Memory())
    session.record("neg", x)
    session.token(y)
    r.numbers.append(3.0)
    r.rollback()
    assert (r.slots, len(r.values), len(r.buffers), r.numbers) == (2, 2, 1, [])
    assert memory.pins == 0
    assert session.token(y) == ("f32", (4,), (1,)), "admitted anew"


def test_a_value_pending_in_another_recorder_is_refused(session: Session) -> None:
    pending = session.record("neg", resident(FOUR, Memory()))
    second = Session()
    with pytest.raises(PendingElsewhere) as caught:
        second.record("exp", pending)
    assert caught.value.value.recorder is session.recorder


def test_a_poisoned_buffer_raises_its_error_again(session: Session) -> None:
    with pytest.raises(ValueError, match="lost"):
        session.record("neg", resident(FOUR, Memory(error=ValueError("lost"))))


def test_a_cut_without_records_does_nothing(session: Session) -> None:
    session.recorder.cut()
    assert session.traces == []


def test_values_do_not_keep_each_other_alive(session: Session) -> None:
    y = session.record("neg", resident(FOUR, Memory()))
    session.recorder.cut()
    reference = session.traces[0].values[1]
    assert reference() is y
    gc.disable()
    try:
        del y
        assert reference() is None, "freed by reference counting alone"
    finally:
        gc.enable()


def test_recorders_that_use_a_value_in_turns_record_the_same_trace(session: Session) -> None:
    another = Session(of=session)
    shared = [resident(FOUR, Memory()) for _ in range(3)]
    kept = [turn.record(name, x) for x in shared for name in ("neg", "exp") for turn in (session, another)]
    kept += [turn.record("sin", x) for x in shared for turn in (another, session)]
    assert session.recorder.state is another.recorder.state
    session.recorder.cut()
    again = [session.record("cos", shared[1]), another.record("tan", shared[1])]
    another.recorder.cut()
    first, second = session.traces[0], another.traces[0]
    assert [first.state.depth, second.state.depth] == [9, 10]
    assert [len(first.buffers), len(second.buffers), session.recorder.state.inputs] == [3, 3, 1]
    assert [value() for value in first.values if value() in shared] == shared
    assert len(kept) + len(again) == 20


def test_a_lent_value_is_admitted_again_after_a_rollback(session: Session) -> None:
    second = Session(of=session)
    x, y = resident(FOUR, Memory()), resident(FOUR, Memory())
    r = session.recorder
    assert r.admit(x) == FOUR.key
    second.recorder.admit(x)
    r.rollback()
    assert r.admit(y) == FOUR.key
    assert r.admit(x) == FOUR.key
    assert (y.slot, x.slot, len(r.buffers)) == (0, 1, 2)
    second.recorder.admit(x)
    assert (r.slot(x), second.recorder.slot(x)) == (1, 0)


def test_rollback_after_an_interrupt_between_a_state_and_its_results(session: Session) -> None:
    """The state was entered, and its value was not created: the slot stays, and is empty."""
    r = session.recorder
    x = resident(FOUR, Memory())
    session.record("neg", x)
    session.recorder.cut()
    r.admit(x)
    r.state = next(iter(session.root.next.values()))
    r.rollback()
    y = session.record("exp", x)
    assert (y.slot, r.slots, len(r.values)) == (2, 3, 3)
    assert r.values[1]() is None
    assert r.values[2]() is y


def test_an_error_raised_again_has_the_message_and_no_frames() -> None:
    class Failure(RuntimeError):
        def __init__(self, op: str, line: int):
            super().__init__(f"{op} at {line}")
            self.line = line

    try:
        raise Failure("exp", 3)
    except Failure as error:
        error.add_note("of 4 ops")
        copy = again(error)
    assert isinstance(copy, Failure)
    assert (str(copy), copy.line, copy.__notes__) == ("exp at 3", 3, ["of 4 ops"])
    assert copy.__traceback__ is None
