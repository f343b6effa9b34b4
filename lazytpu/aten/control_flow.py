"""Branches and loops over subtraces, which torch.cond, while_loop and scan are recorded as.

A region of the dialect is a subtrace, imported into it. Its random ops draw from the (seed, offset) of the record. The
first op of the first iteration draws as any op would. The others draw from offsets far beyond the offsets of other
records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xdsl.ir import SSAValue

from lazytpu.aten.importer import Importer, base_of
from lazytpu.aten.recompute import Recomputation
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import PackPlan
from lazytpu.aten.views.parts import NO_PARTS
from lazytpu.ir.types import shape_of
from lazytpu.trace.subtraces import SUBTRACES, Subtrace
from lazytpu.trace.value import Layout

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder

Rng = tuple[SSAValue, SSAValue]
PER_DRAW, PER_ITERATION = 1 << 32, 1 << 40
"Steps of the offset from one random op of a subtrace to the next, and from one iteration to the next."


class _Region(Importer):
    """Imports a subtrace into the region that `b` builds."""

    def __init__(self, b: Builder, subtrace: Subtrace, arguments: Sequence[SSAValue], rng: Rng | None):
        self.b = b
        self.subtrace = subtrace
        self.records = subtrace.records
        self.arguments = arguments
        self.rng = rng
        self.plan = PackPlan(constants=dict(enumerate(subtrace.numbers)))
        self.memory: dict[int, SSAValue] = {}
        self.bases: dict[int, Any] = {}
        self.successors: dict[int, int] = {}
        self.checking: list[int] = [0] * len(b.checks)
        self.recomputation = Recomputation()
        self.parts, self.number = NO_PARTS, 0
        self.drawn = 0
        for slot, index in subtrace.inputs.items():
            base = self.bases[slot] = base_of(subtrace.arguments[index])
            self.memory[slot] = base.to_memory(b, arguments[index])

    def results(self) -> list[SSAValue]:
        """Return the results of the subtrace."""
        self.import_records()
        return [self.arguments[r] if isinstance(r, int) else self.read(r) for r in self.subtrace.results]

    def admit(self, slot: int, layout: Layout, empty: bool) -> None:
        if slot not in self.subtrace.inputs:  # memory that nothing has written
            base = self.bases[slot] = base_of(layout)
            self.memory[slot] = self.b.constant(0, base.dtype, base.memory_shape)

    def seed_and_offset(self, index: int) -> Rng:
        assert self.rng is not None, "a subtrace that draws, of a record that does not"
        (seed, offset), draw = self.rng, self.drawn
        self.drawn += 1
        return seed, self.b.add(offset, self.b.constant(draw * PER_DRAW, "ui64")) if draw else offset


def run_subtrace(b: Builder, name: str, arguments: Sequence[SSAValue], rng: Rng | None = None) -> list[SSAValue]:
    """The results of a subtrace, imported where it is called."""
    return _Region(b, SUBTRACES[name], arguments, rng).results()


def _in_iteration(b: Builder, rng: Rng | None, i: SSAValue) -> Rng | None:
    """The (seed, offset) of iteration `i` of a loop."""
    if rng is None:
        return None
    return rng[0], b.add(rng[1], b.mul(b.convert(i, "ui64"), b.constant(PER_ITERATION, "ui64")))


def _truth(b: Builder, value: SSAValue) -> SSAValue:
    return b.convert(b.reshape(value, ()), "i1")


@rule("lazytpu.cond.default")
def cond(
    b: Builder, predicate: SSAValue, inputs: list[SSAValue], then: str, orelse: str, rng: Rng | None = None
) -> list[SSAValue]:
    """torch.cond: the results of one of two subtraces."""
    return b.if_(
        _truth(b, predicate),
        lambda inner, *values: run_subtrace(inner, then, values, rng),
        lambda inner, *values: run_subtrace(inner, orelse, values, rng),
        inputs,
    )


@rule("lazytpu.cond.random", random=True)
def cond_random(
    b: Builder, predicate: SSAValue, inputs: list[SSAValue], then: str, orelse: str, rng: Rng
) -> list[SSAValue]:
    """torch.cond with random ops in a branch."""
    return cond(b, predicate, inputs, then, orelse, rng)


@rule("lazytpu.while_loop.default")
def while_loop(
    b: Builder, carried: list[SSAValue], invariants: list[SSAValue], cond: str, body: str, rng: Rng | None = None
) -> list[SSAValue]:
    """torch.while_loop: the carried values after the last iteration."""

    def going(inner: Builder, i: SSAValue, *values: SSAValue) -> SSAValue:
        return _truth(inner, *run_subtrace(inner, cond, values, _in_iteration(inner, rng, i)))

    def step(inner: Builder, i: SSAValue, *values: SSAValue) -> list[SSAValue]:
        carried = run_subtrace(inner, body, values, _in_iteration(inner, rng, i))
        return [inner.add(i, inner.constant(1, "i32")), *carried]

    return b.while_([b.constant(0, "i32"), *carried], going, step, invariants)[1:]


@rule("lazytpu.while_loop.random", random=True)
def while_loop_random(
    b: Builder, carried: list[SSAValue], invariants: list[SSAValue], cond: str, body: str, rng: Rng
) -> list[SSAValue]:
    """torch.while_loop with random ops."""
    return while_loop(b, carried, invariants, cond, body, rng)


@rule("lazytpu.scan.default")
def scan(
    b: Builder,
    carried: list[SSAValue],
    xs: list[SSAValue],
    invariants: list[SSAValue],
    body: str,
    rng: Rng | None = None,
) -> list[SSAValue]:
    """torch's scan: the carried values after the last row of xs, and the stacked outputs of all rows."""
    length, count = shape_of(xs[0])[0], len(carried)
    rows = [*xs, b.iota("i64", (length,), 0)] if rng is not None else xs

    def step(inner: Builder, *values: SSAValue) -> list[SSAValue]:
        if rng is None:
            return run_subtrace(inner, body, values)
        at = count + len(xs)
        return run_subtrace(inner, body, (*values[:at], *values[at + 1 :]), _in_iteration(inner, rng, values[at]))

    final, stacked = b.scan(carried, rows, step, length, invariants=invariants)
    return [*final, *stacked]


@rule("lazytpu.scan.random", random=True)
def scan_random(
    b: Builder, carried: list[SSAValue], xs: list[SSAValue], invariants: list[SSAValue], body: str, rng: Rng
) -> list[SSAValue]:
    """torch's scan with random ops."""
    return scan(b, carried, xs, invariants, body, rng)
