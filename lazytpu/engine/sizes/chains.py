"""States of the trie that are known but for their sizes, made by compiled expressions: 8 us each, where a record that
is inferred takes 300, and asking torch for its results 200.

A chain is made of a trace whose forms three samples have shown. It grows where a trace leaves what was recorded before
by a key that the forms give. A key that they get wrong is never looked up: its record is inferred as always. The
layouts of results are what recording goes on with, and what Python sees: they are derived from those of the operands
(`results`), or torch is asked for them at each new size before a state has them (`Inference.agrees`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from lazytpu.aten.schema import functional
from lazytpu.engine.sizes.edges import Key, Reading, Writer, expression, read_key
from lazytpu.engine.sizes.fitting import Varying
from lazytpu.engine.sizes.results import LARGEST, Results, integers_of
from lazytpu.engine.sizes.skeletons import LEAST, Integers, Layouts, note_given, note_made, put_together
from lazytpu.engine.sizes.unexpected import LookingFor
from lazytpu.ir.forms import Form, form, symbol
from lazytpu.ir.symbolic import Guard
from lazytpu.options import options
from lazytpu.ports import Inference
from lazytpu.trace.trie import Marks, Operand, OtherSizes, Record, State

AT_ONCE = 4
"Chains that begin at one place, where traces of several kinds begin alike."

CHECKED = frozenset(
    """mm bmm addmm baddbmm sum mean cat stack copy_ _softmax _log_softmax _softmax_backward_data
    _log_softmax_backward_data gelu gelu_backward ones_like zeros_like native_layer_norm
    native_layer_norm_backward""".split()
)
"""Names of ops, beside pointwise ones, whose meta function in Python refuses all sizes that the one in C++ does. Of all
others torch is asked at each size, as an error must come at its op."""

Sizes = tuple[int, ...]


@dataclass(eq=False)
class Segment:
    """States in a row whose sizes are known when the first of them is recorded: `twins` are those of a sample.

    `found` are the positions of new symbols among the integers of the first key. Of all symbols so far, `numbers` gives
    the numbers of the forms; of these, `head` makes the first key, and `edges` all keys, results and records. `sizes`
    are the positions of those that are sizes of tensors. `holds` says whether layouts of results are as derived; for
    those of the states with the numbers `asked`, torch is asked."""

    twins: Sequence[State]
    found: tuple[int, ...]
    numbers: Callable[..., Sizes]
    head: Callable[[Sizes], Key]
    edges: Callable[[Sizes, Inference], Sequence[tuple[Key, Any, Record]]]
    sizes: tuple[int, ...]
    holds: Callable[..., bool]
    asked: tuple[int, ...]


class Chain:
    """The states of a trace as functions of its sizes. `states` are those of one sample, whose integers are `reading`,
    `varying` as in all samples. The first `left` are what an earlier read left of a trace, and have no keys.

    `segments` are empty where nothing can be made. The first is of children of the state `begins`, by number, -1 for
    the root; or, if it is `of_left`, of any state that has the sizes of what was left.
    """

    def __init__(
        self, states: Sequence[State], left: int, reading: Reading, varying: Varying, inference: Inference
    ) -> None:
        self._states, self._reading, self._forms = states, reading, _forms(varying)
        self._ends = [*reading.starts[1:], len(self._forms)]
        self._places = varying.symbols
        self._symbols = dict(sorted(self._shown(varying, left), key=lambda item: item[1]))
        self._shown_at = {name: self._state_of(at) for name, at in self._symbols.items()}
        self.segments: list[Segment] = []
        self.of_left = False
        self.begins = -1
        if not self._symbols:
            return
        first = min(self._shown_at.values())
        self.of_left = first < left
        self._guards = self._derived(inference)
        starts = sorted({max(number, left) for number in self._shown_at.values()})
        self.begins = starts[0] - 1
        if all((at >= reading.starts[first]).all() for at in varying.varying.values()):
            copied = (i for i, state in enumerate(states) if state.offsets.copies and i >= starts[0])
            last = next(copied, len(states) - 1)
            for start, end in zip(starts, [*starts[1:], len(states)], strict=True):
                segment = self._segment(start, min(end, last + 1))  # views that are copied have keys of their own
                if segment is None:
                    break
                self.segments.append(segment)

    def _shown(self, varying: Varying, left: int) -> Iterator[tuple[str, int]]:
        """The symbols, each with the first integer of a key, or of what was left, that is its size."""
        for name in varying.symbols:
            for at in sorted(varying.varying[symbol(name)].tolist()):
                number = self._state_of(at)
                if number < left or at < self._reading.keys[number]:
                    yield name, at
                    break

    def _state_of(self, position: int) -> int:
        """The number of the state that an integer is of."""
        return int(np.searchsorted(self._reading.starts, position, side="right")) - 1

    def _segment(self, start: int, end: int) -> Segment | None:
        """The states of these numbers; None where there are none, or they have sizes that later ones show."""
        names = [name for name, number in self._shown_at.items() if number <= start]
        starts = self._reading.starts
        found = [self._symbols[name] - starts[start] for name in names if self._shown_at[name] == start]
        twins, writer = self._states[start:end], Writer()
        if not twins:
            return None
        head = writer.key(twins[0].key or (), self._forms_from(starts[start]))
        edges = [writer.edge(twin, self._forms_from(starts[number])) for number, twin in enumerate(twins, start)]
        if any(size.symbols - set(names) for size in writer.forms):
            return None
        numbers = "".join([f"{expression(size)}, " for size in writer.forms])
        guards = {guard: None for number in range(start, end) for guard in self._guards.get(number, ())}
        holds = [f"(({expression(guard.form)}) {guard.relation} 0) is {guard.holds}" for guard in guards]
        source = (
            f"def numbers({', '.join(names)}): return ({numbers})\n"
            f"def holds({', '.join(names)}): return {' and '.join(holds) or True}\n"
            f"def head(f): return {head}\n"
            f"def edges(f, inference):\n layout = inference.layout\n return ({', '.join(edges)},)\n"
        )
        scope: dict[str, Any] = {"c": writer.constants, "record": _record, "operand": Operand}
        exec(compile(source, "<states known but for their sizes>", "exec"), scope)
        sizes = tuple([writer.forms[size] for size in writer.sizes if size in writer.forms])
        known = () if options.verify_sizes else self._guards
        asked = tuple([i for i, number in enumerate(range(start, end)) if number not in known])
        return Segment(
            twins, tuple(found), scope["numbers"], scope["head"], scope["edges"], sizes, scope["holds"], asked
        )

    def _derived(self, inference: Inference) -> dict[int, tuple[Guard, ...]]:
        """The numbers of the states whose results have the layouts that their forms say, with the guards of that."""
        results, old, new, found = Results(inference), Layouts(), Layouts(), dict[int, tuple[Guard, ...]]()
        for name, at in self._places.items():
            results.begin(name, LEAST, self._reading.integers.values[at])
        for number, (state, at) in enumerate(zip(self._states, self._reading.records, strict=True)):
            (own,) = state.recorded
            record = put_together(own, map(results.size, self._forms_from(at)))
            note_given(own, old)
            note_given(record, new)
            if all(each.number is not None for each in self._forms[at : self._ends[number]]):
                found[number] = ()
            elif _is_checked(own):
                outs, guards = results.of(record, new)
                made = None if outs is None else [*map(results.derivation.form_of, integers_of(own, outs))]
                end = self._ends[number]
                if made is not None and self._forms[end - len(made) : end] == made:
                    found[number] = guards
            note_made(own, old)
            note_made(record, new)
        return found

    def _forms_from(self, position: int) -> Iterator[Form]:
        return iter(self._forms[position:])

    def grow_on_left(self, integers: Sequence[int], parent: State, key: Key, inference: Inference) -> None:
        """As `grow`, behind what was left of a trace, whose integers are these. Nothing is made where one of them is a
        form of a size that shows later."""
        with LookingFor("states of other sizes behind a read"):
            self._grow_on_left(integers, parent, key, inference)

    def _grow_on_left(self, integers: Sequence[int], parent: State, key: Key, inference: Inference) -> None:
        sizes = {name: integers[at] for name, at in self._symbols.items() if at < len(integers)}
        forms = self._forms[: len(integers)]
        if all(size.symbols <= sizes.keys() for size in forms) and [size.at(sizes) for size in forms] == list(integers):
            self.grow(0, tuple(sizes.values()), parent, key, inference)

    def grow(self, number: int, known: Sizes, parent: State, key: Key, inference: Inference) -> None:
        """Give `parent` the states of a segment, if its first key is this one. `known` are the symbols before it."""
        with LookingFor("states of other sizes"):
            self._grow(number, known, parent, key, inference)

    def _grow(self, number: int, known: Sizes, parent: State, key: Key, inference: Inference) -> None:
        segment = self.segments[number]
        if segment.found:
            into = Integers([], [])
            read_key(key, into)
            if max(segment.found) >= len(into.values):
                return
            known = *known, *[into.values[at] for at in segment.found]
        numbers = self._numbers(segment, known)
        if numbers is None or segment.head(numbers) != key or not inference.at(segment.twins[0].recorded[0]):
            return  # lines are those of the user's that errors name
        if not segment.holds(*known):
            return
        try:
            edges = segment.edges(numbers, inference)
        except (RuntimeError, NotImplementedError):  # too large for the device: recording says so
            return
        if segment.asked:
            before = parent.records()
            records = [*before, *[record for _, _, record in edges]]
            if not inference.agrees(records, [len(before) + i for i in segment.asked]):
                return
        state = parent
        for (own, outs, record), twin in zip(edges, segment.twins, strict=True):
            child = state.next.get(own)
            if child is None:
                child = State(state, record, outs, twin.slots, twin.inputs, twin.numbers)
                child.inherit(twin)
                child.sizes = OtherSizes(grown=True)
                if twin.marks.starts and not twin.next:  # another step begins there, whatever its first record
                    child.marks = Marks(twin.marks.loop, next(iter(twin.marks.starts.values())))
                state.add(own, child)
            state = child
        if number + 1 < len(self.segments):
            grows = (partial(self.grow, number + 1, known), *state.sizes.grows)[:AT_ONCE]
            state.sizes = replace(state.sizes, grows=grows)

    @staticmethod
    def _numbers(segment: Segment, known: Sizes) -> Sizes | None:
        """The numbers of the forms at these sizes; None where one is a size that may be another kind."""
        numbers = segment.numbers(*known)
        large = max(numbers, default=0) >= LARGEST
        return None if large or min(known) < LEAST or any(numbers[i] < LEAST for i in segment.sizes) else numbers


def _forms(varying: Varying) -> list[Form]:
    """The form of each integer."""
    forms = [form(n) for n in varying.fixed.tolist()]
    for size, positions in varying.varying.items():
        for position in positions.tolist():
            forms[position] = size
    return forms


def _record(of: Record, arguments: dict[str, Any], outs: Any, admitted: Any) -> Record:
    """A record like another one, at other sizes."""
    return Record(
        of.op, arguments, outs, of.out_slots, of.written, admitted, of.line, of.rng, of.settings, of.in_backward,
        of.in_step, of.in_graph, of.call, of.tuned,
    )  # fmt: skip


def _is_checked(record: Record) -> bool:
    op = functional(record.op) if record.written else record.op
    pointwise = op is not None and torch.Tag.pointwise in op.tags
    return pointwise or record.op._schema.name.removeprefix("aten::") in CHECKED
