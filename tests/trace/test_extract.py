"""Parts of a trace: which records, how they are numbered, and that equal parts are one state."""

from __future__ import annotations

import gc
from typing import Any

from lazytpu.trace.extract import Slots, closure, extract
from lazytpu.trace.trie import CutPlan, Number, Operand, Record
from lazytpu.trace.value import Layout

FOUR, TWO = Layout("f32", (4,), (1,)), Layout("f32", (2,), (1,))
HALF = ((2,), (1,), 2, "f32")


class Tracer:
    """Writes records as the kernels do: slots to new operands first, then to results, then to what is written."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.slots = 0
        self.numbers = 0
        self.admitted: list[tuple[int, Layout, bool]] = []

    def new(self, layout: Layout = FOUR, empty: bool = False) -> int:
        """A value from outside, as the next record is the first to use it."""
        self.admitted.append((self.slots, layout, empty))
        self.slots += 1
        return self.slots - 1

    def number(self, kind: type = float) -> Number:
        self.numbers += 1
        return Number(self.numbers - 1, kind)

    def __call__(self, op: str, arguments: dict[str, Any], out: Layout | None = FOUR, **more: Any) -> int:
        """Record an op; returns the slot of its result, or of the first value it writes."""
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


def test_a_part_is_numbered_from_zero_and_takes_what_others_made_as_inputs() -> None:
    t = Tracer()
    x = t.new()
    a = t("exp", {"x": Operand(x, None)})
    w = t.new(TWO)
    b = t("mul", {"x": Operand(a, HALF), "y": Operand(w, None), "by": t.number()}, TWO)
    c = t("add", {"x": Operand(b, None), "y": Operand(b, None), "alpha": t.number(int)}, TWO)
    part = extract(t.records, [1, 2])
    mul, add = part.state.records()
    assert mul.arguments == {"x": Operand(0, HALF), "y": Operand(1, None), "by": Number(0, float)}
    assert mul.admitted == ((0, FOUR, False), (1, TWO, False))
    assert (mul.out_slots, mul.line) == ((2,), "train.py:1")
    assert add.arguments == {"x": Operand(2, None), "y": Operand(2, None), "alpha": Number(1, int)}
    assert (add.admitted, add.out_slots) == ((), (3,))
    assert part.origins == (a, w, b, c)
    assert part.slots == {a: 0, w: 1, b: 2, c: 3}
    assert (part.inputs, part.sources) == ((a, w), (None, 1)), "the second input of the whole trace is w"
    assert part.numbers == (0, 1)
    assert (part.state.slots, part.state.inputs, part.state.numbers, part.state.depth) == (4, 2, 2, 2)
    plan = CutPlan.of(part.state)
    assert (plan.inputs, plan.results) == ((0, 1), (2, 3))


def test_numbers_and_random_numbers_keep_their_values() -> None:
    t = Tracer()
    x = t.new()
    t("mul", {"x": Operand(x, None), "by": t.number()})
    t("rand", {"like": Operand(x, None)}, random=True)
    t("clamp", {"x": Operand(x, None), "bounds": [t.number(), t.number()]})
    part = extract(t.records, [1, 2])
    rand, clamp = part.state.records()
    assert rand.rng == 0
    assert clamp.arguments["bounds"] == [Number(2, float), Number(3, float)]
    assert part.numbers == (1, 2, 3, 4)


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
    def single(before: int, alpha: object, layout: Layout = FOUR) -> Any:
        t = Tracer()
        x = t.new(layout)
        for _ in range(before):
            x = t("exp", {"x": Operand(x, None)}, layout)
        t("add", {"x": Operand(x, None), "by": t.number(), "alpha": alpha}, layout)
        return extract(t.records, [before]).state

    state = single(0, 1)
    assert single(3, 1) is state
    assert single(1, 1, Layout("f32", (4,), (1,))) is state
    others = [single(0, 1.0), single(0, True), single(0, -0.0), single(0, 0.0), single(0, 1, TWO)]
    assert len({id(s) for s in [state, *others]}) == 6
    nan = single(2, float("nan"))
    assert single(0, float("nan")) is nan


def test_chains_nobody_uses_are_forgotten() -> None:
    t = Tracer()
    t("exp", {"x": Operand(t.new(Layout("f32", (77,), (1,))), None)})
    known = [extract(t.records, [0]).state]
    marked = known[0].plan = CutPlan.of(known[0])
    assert extract(t.records, [0]).state.plan is marked
    known.clear()
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
    known = Slots(t.records)
    assert closure(t.records, {4}, known) == {0, 2, 4}
    assert closure(t.records, {3}, known) == {1, 3}
    assert closure(t.records, set(), known) == set()
