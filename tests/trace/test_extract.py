"""Extracted traces: their records and numbering, and that equal ones share a state."""

from __future__ import annotations

import gc
from typing import Any

from lazytpu.trace.extract import Slots, closure, extract
from lazytpu.trace.trie import CutPlan, Number, Operand, Record
from lazytpu.trace.value import Layout

FOUR, TWO = Layout("f32", (4,), (1,)), Layout("f32", (2,), (1,))
HALF = ((2,), (1,), 2, "f32")


class Tracer:
    """Writes records as the kernels do: slots for new operands first, then for results, then for written values."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.slots = 0
        self.numbers = 0
        self.admitted: list[tuple[int, Layout, bool]] = []

    def new(self, layout: Layout = FOUR, empty: bool = False) -> int:
        """Return a value from outside that the next record is the first to use."""
        self.admitted.append((self.slots, layout, empty))
        self.slots += 1
        return self.slots - 1

    def number(self, kind: type = float) -> Number:
        self.numbers += 1
        return Number(self.numbers - 1, kind)

    def __call__(self, op: str, arguments: dict[str, Any], out: Layout | None = FOUR, **more: Any) -> int:
        """Record an op. Returns the slot of its result, or of the first value that it writes."""
        outs = () if out is None else (out,)
        slot, self.slots = self.slots, self.slots + len(outs)
        written: dict[str, tuple[int, ...]] = {}
        for name in more.pop("writes", ()):
            count = len(arguments[name]) if isinstance(arguments[name], list) else 1
            written[name] = tuple(range(self.slots, self.slots + count))
            self.slots += count
        if more.pop("random", False):
            more["rng"], self.numbers = self.numbers, self.numbers + 2
        line = f"train.py:{len(self.records)}"
        out_slots = (slot,) if outs else ()
        self.records.append(Record(op, arguments, outs, out_slots, written, tuple(self.admitted), line, **more))
        self.admitted = []
        return slot


def test_an_extract_is_numbered_from_zero_and_takes_outer_values_as_inputs() -> None:
    t = Tracer()
    x = t.new()
    a = t("exp", {"x": Operand(x, None)})
    w = t.new(TWO)
    b = t("mul", {"x": Operand(a, HALF), "y": Operand(w, None), "by": t.number()}, TWO)
    c = t("add", {"x": Operand(b, None), "y": Operand(b, None), "alpha": t.number(int)}, TWO)
    extracted = extract(t.records, [1, 2])
    mul, add = extracted.state.records()
    assert mul.arguments == {"x": Operand(0, HALF), "y": Operand(1, None), "by": Number(0, float)}
    assert mul.admitted == ((0, FOUR, False), (1, TWO, False))
    assert (mul.out_slots, mul.line) == ((2,), "train.py:1")
    assert add.arguments == {"x": Operand(2, None), "y": Operand(2, None), "alpha": Number(1, int)}
    assert (add.admitted, add.out_slots) == ((), (3,))
    assert extracted.origins == (a, w, b, c)
    assert extracted.slots == {a: 0, w: 1, b: 2, c: 3}
    assert (extracted.inputs, extracted.sources) == ((a, w), (None, 1)), "the second input of the whole trace is w"
    assert extracted.numbers == (0, 1)
    state = extracted.state
    assert (state.slots, state.inputs, state.numbers, state.depth) == (4, 2, 2, 2)
    plan = CutPlan.of(extracted.state)
    assert (plan.inputs, plan.results) == ((0, 1), (2, 3))


def test_numbers_and_random_numbers_keep_their_values() -> None:
    t = Tracer()
    x = t.new()
    t("mul", {"x": Operand(x, None), "by": t.number()})
    t("rand", {"like": Operand(x, None)}, random=True)
    t("clamp", {"x": Operand(x, None), "bounds": [t.number(), t.number()]})
    extracted = extract(t.records, [1, 2])
    rand, clamp = extracted.state.records()
    assert rand.rng == 0
    assert clamp.arguments["bounds"] == [Number(2, float), Number(3, float)]
    assert extracted.numbers == (1, 2, 3, 4)


def test_written_lists_and_empty_memory() -> None:
    t = Tracer()
    e, p, q = t.new(empty=True), t.new(), t.new(TWO)
    t("foreach_zero", {"all": [Operand(e, None), None, Operand(p, None), Operand(q, None)]}, None, writes=["all"])
    assert t.records[0].written == {"all": (3, 4, 5, 6)}
    records = [*t.records]
    records[0] = Record("foreach_zero", t.records[0].arguments, (), (), {"all": (3, 4, 5)}, t.records[0].admitted, "l")
    t.records, t.slots = records, 6
    t("neg", {"x": Operand(5, None)}, TWO)
    t("copy", {"into": Operand(e, None), "x": Operand(4, None)}, None, writes=["into"])
    negated, copied = extract(t.records, [1]), extract(t.records, [2])
    assert negated.state.records()[0].admitted == ((0, TWO, False),), "the layout of what was written"
    assert copied.state.records()[0].admitted == ((0, FOUR, True), (1, FOUR, False))
    assert copied.state.records()[0].written == {"into": (2,)}
    assert (copied.inputs, copied.sources) == ((4,), (None,))
    assert CutPlan.of(copied.state).results == (0, 2)


def test_equal_records_of_different_traces_are_one_state() -> None:
    def single(before: int, alpha: object, layout: Layout = FOUR, **more: Any) -> Any:
        t = Tracer()
        x = t.new(layout)
        for _ in range(before):
            x = t("exp", {"x": Operand(x, None)}, layout)
        t("add", {"x": Operand(x, None), "by": t.number(), "alpha": alpha}, layout, **more)
        return extract(t.records, [before]).state

    state = single(0, 1)
    assert single(3, 1) is state
    assert single(1, 1, Layout("f32", (4,), (1,))) is state
    different = [single(0, 1.0), single(0, True), single(0, -0.0), single(0, 0.0), single(0, 1, TWO)]
    assert len({id(s) for s in [state, *different]}) == 6
    flags: list[dict[str, Any]] = [{"in_backward": True}, {"in_step": True}, {"in_graph": True}, {"tuned": True}]
    assert len({id(s) for s in [state, *(single(0, 1, **flag) for flag in [*flags, {"call": "eval"}])]}) == 6
    nan = single(2, float("nan"))
    assert single(0, float("nan")) is nan


def test_chains_nobody_uses_are_forgotten() -> None:
    t = Tracer()
    t("exp", {"x": Operand(t.new(Layout("f32", (77,), (1,))), None)})
    states = [extract(t.records, [0]).state]
    marked = states[0].plan = CutPlan.of(states[0])
    assert extract(t.records, [0]).state.plan is marked
    states.clear()
    gc.collect()
    assert extract(t.records, [0]).state.plan is None


def test_the_closure_of_a_record_follows_operands_and_writes() -> None:
    t = Tracer()
    x = t.new()
    a = t("exp", {"x": Operand(x, None)})
    b = t("sin", {"x": Operand(x, None)})
    a2 = t("add_", {"self": Operand(a, HALF), "y": Operand(x, HALF)}, None, writes=["self"])
    t("cat", {"all": [Operand(b, None), None, Operand(x, None)]})
    t("mul", {"x": Operand(a2, None), "y": Operand(a, None)})
    slots = Slots(t.records)
    assert closure(t.records, {4}, slots) == {0, 2, 4}
    assert closure(t.records, {3}, slots) == {1, 3}
    assert closure(t.records, set(), slots) == set()
