"""Trie states derived for new sizes from the size expressions of a shape family.

Deriving a state takes 40 us. Recording it takes 300 us if the record is inferred, and 200 us to infer its results with
torch.

The states of a chain are added where a trace leaves the recorded paths with a key that the size expressions give. A
wrong expression yields a key that no lookup has; that record is then inferred as usual.

Recording continues with the layouts of results, and Python sees them, so they must be right. They are derived from the
layouts of operands (`results`), or torch infers them at each new size before a state has them (`Inference.agrees`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import torch

from lazytpu.aten.schema import functional
from lazytpu.engine.sizes.edges import Edge, Key, at_sizes
from lazytpu.engine.sizes.fitting import Varying
from lazytpu.engine.sizes.results import LARGEST, Results, integers_of
from lazytpu.engine.sizes.skeletons import Integers, Layouts, forms_in, note_given, note_made, trace_apart
from lazytpu.engine.errors.unexpected import looking_for
from lazytpu.ir.forms import Form, symbol
from lazytpu.ir.symbolic import MIN_SYMBOL, Guard, Size
from lazytpu.options import options
from lazytpu.ports import Inference
from lazytpu.trace.extract import operands
from lazytpu.trace.trie import Marks, OtherSizes, Record, State

AT_ONCE = 4
"""The greatest number of chains that begin at one state, where traces of several families have the same beginning."""

CHECKED = frozenset(
    """mm bmm addmm baddbmm sum mean cat stack copy_ _softmax _log_softmax _softmax_backward_data
    _log_softmax_backward_data gelu gelu_backward ones_like zeros_like native_layer_norm
    native_layer_norm_backward""".split()
)
"""Names of ops, in addition to pointwise ones, whose Python meta function rejects all sizes that the C++ one rejects.
For any other op, torch infers the results at each new size, since an error must be raised at its op."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Segment:
    """Consecutive edges whose sizes are all known once the key of the first one is.

    - `shown`: the positions of new symbols among the integers of the first key.
    - `guards`: the conditions under which the derived layouts of results hold.
    - `asked`: the numbers of the edges whose results torch must infer.
    """

    edges: Sequence[Edge]
    shown: Mapping[str, int]
    guards: Sequence[Guard]
    asked: Sequence[int]

    @cached_property
    def forms(self) -> frozenset[Form]:
        """The expressions of all integers."""
        return frozenset[Form]().union(*[edge.forms for edge in self.edges])

    @cached_property
    def sizes(self) -> frozenset[Form]:
        """The expressions of sizes of tensors."""
        return frozenset[Form]().union(*[edge.sizes for edge in self.edges])

    def at(self, sizes: Sizes, key: Key, inference: Inference) -> list[tuple[Key, Any, Record]] | None:
        """Return the edges at these sizes; None if the first one has another key, or if they are not known to be right.

        They are right if all sizes belong to the structure, and if errors would name the right source line.
        """
        numbers, first = {form: form.at(sizes) for form in self.forms}, self.edges[0]
        if max(numbers.values(), default=0) >= LARGEST:
            return None
        if min([*sizes.values(), *[numbers[size] for size in self.sizes]]) < MIN_SYMBOL:
            return None
        if first.at(numbers, inference.layout)[0] != key or not all(guard.at(sizes) for guard in self.guards):
            return None
        return [edge.at(numbers, inference.layout) for edge in self.edges] if inference.at(first.record) else None


class Chain:
    """The states of a trace as functions of its sizes.

    `states` are the states of one observed trace, `sizes` its sizes, and `varying` the size expressions of its family.
    The first `left` states are those that an earlier read left behind, and have no keys.

    `segments` is empty if no state can be derived. `begins` is the number of the state whose children the first segment
    gives, -1 for the root. With `of_left` that parent is any state that has the sizes left behind by the read.
    """

    def __init__(self, states: Sequence[State], varying: Varying, sizes: Sizes, inference: Inference) -> None:
        results, forms = varying.results, list(varying.forms)
        if results is None or results.derivation.bound != sizes:  # comparisons are to be decided at these sizes
            results = Results(inference)
            for name, size in sizes.items():
                results.begin(name, MIN_SYMBOL, size)
        edges = _right_at(at_sizes(states, map(results.derivation.size, forms)), sizes, inference)
        self.left = sum(state.key is None for state in states)
        trace_apart([*map(_record, states[: self.left])], integers := Integers([], []))
        self._of_left = forms[: len(integers.values)]
        self._shown_by_left = {name: self._of_left.index(n) for name in sizes if (n := symbol(name)) in self._of_left}
        self.of_left = bool(self._shown_by_left)
        # Find the first key that has each other symbol. A segment begins with each such key.
        shown: dict[str, tuple[int, int]] = dict.fromkeys(self._shown_by_left, (self.left, -1))
        for number, edge in enumerate(edges):
            for at, integer in enumerate(_integers(edge.key)):
                if type(integer) is Size and [*integer.form.symbols] == [str(integer.form)]:
                    shown.setdefault(str(integer.form), (number, at))
        starts = sorted({number for number, _ in shown.values()})
        self.begins = starts[0] - 1 if starts else -1
        self.segments: list[Segment] = []
        if not starts or (not self.of_left and any(edge.forms for edge in edges[: self.begins + 1])):
            return
        derived = _derived(edges, results)
        copied = (i for i, edge in enumerate(edges) if edge.twin.offsets.copies and i > self.begins)
        last = next(copied, len(edges) - 1) + 1  # views that are copied have keys of their own
        for start, end in zip(starts, [*starts[1:], last], strict=True):
            known = {name for name, (number, _) in shown.items() if number <= start}
            of_segment = edges[start : min(end, last)]
            if not of_segment or any(form.symbols - known for edge in of_segment for form in edge.forms):
                break
            new = {name: at for name, (number, at) in shown.items() if number == start and at >= 0}
            guards = dict.fromkeys([guard for i in range(start, end) for guard in derived.get(i, ())])
            asked = [i for i in range(len(of_segment)) if start + i not in derived or options.verify_sizes]
            self.segments.append(Segment(of_segment, new, tuple(guards), asked))

    @looking_for("states of other sizes behind a read")
    def grow_on_left(self, integers: Sequence[int], parent: State, key: Key, inference: Inference) -> None:
        """Add the states of the first segment after the states that a read left behind; `integers` are the integers of
        these.

        Add nothing if one of the integers is an expression of a symbol that only a later state shows.
        """
        sizes = {name: integers[at] for name, at in self._shown_by_left.items()}
        known = all(form.symbols <= sizes.keys() for form in self._of_left)
        if known and [form.at(sizes) for form in self._of_left] == list(integers):
            self.grow(0, sizes, parent, key, inference)

    @looking_for("states of other sizes")
    def grow(self, number: int, known: Sizes, parent: State, key: Key, inference: Inference) -> None:
        """Add the states of a segment as children of `parent`, if the segment's first key is `key`. `known` are the
        values of the symbols of earlier segments."""
        segment, integers = self.segments[number], _integers(key)
        if max(segment.shown.values(), default=-1) >= len(integers):
            return
        sizes = {**known, **{name: integers[at] for name, at in segment.shown.items()}}
        try:
            edges = segment.at(sizes, key, inference)
        except (RuntimeError, NotImplementedError):  # too large for the device: recording raises the error
            return
        if edges is None:
            return
        # Ask torch for result layouts that are not derived.
        if segment.asked:
            previous = parent.records()
            records = [*previous, *[record for _, _, record in edges]]
            if not inference.agrees(records, [len(previous) + i for i in segment.asked]):
                return
        state = parent
        # Add the states that the trie does not have yet, and let the next segment begin after them.
        for (edge_key, outs, record), edge in zip(edges, segment.edges, strict=True):
            child, twin = state.next.get(edge_key), edge.twin
            if child is None:
                child = State(state, record, outs, twin.slots, twin.inputs, twin.numbers)
                child.inherit(twin)
                child.sizes = OtherSizes(grown=True)
                if twin.marks.starts and not twin.next:  # another step begins there, whatever its first record
                    child.marks = Marks(twin.marks.loop, next(iter(twin.marks.starts.values())))
                state.add(edge_key, child)
            state = child
        if number + 1 < len(self.segments):
            grows = (partial(self.grow, number + 1, sizes), *state.sizes.grows)[:AT_ONCE]
            state.sizes = state.sizes._replace(grows=grows)


def _record(state: State) -> Record:
    """Return the only record of a state."""
    (record,) = state.recorded
    return record


def _integers(key: Any) -> list[Any]:
    """Return the integers of a key, which may be symbolic."""
    if isinstance(key, tuple):
        return [integer for token in cast("tuple[Any, ...]", key) for integer in _integers(token)]
    return [key] if type(key) in (int, Size) else []


def _right_at(edges: Sequence[Edge], sizes: Sizes, inference: Inference) -> Sequence[Edge]:
    """Return the edges before the first one that differs at these sizes from the recorded one."""
    for number, edge in enumerate(edges):
        key, _, record = edge.at({form: form.at(sizes) for form in edge.forms}, inference.layout)
        outs, recorded = ([out and out.key for out in of.outs] for of in (record, _record(edge.twin)))
        if key != edge.twin.key or outs != recorded:
            return edges[:number]
    return edges


def _derived(edges: Sequence[Edge], results: Results) -> dict[int, tuple[Guard, ...]]:
    """Return the numbers of the edges whose result layouts follow from the layouts of operands, each with the guards
    under which they do."""
    layouts, derived = Layouts(), dict[int, tuple[Guard, ...]]()
    for number, edge in enumerate(edges):
        record, original = edge.record, _record(edge.twin)
        note_given(record, layouts)
        read = [layouts[operand.slot] for value in record.arguments.values() for operand in operands(value)]
        if not edge.forms and not forms_in(read):
            derived[number] = ()
        elif _is_checked(original):
            outs, guards = results.of(record, layouts)
            form_of = results.derivation.form_of
            pair = [[*map(form_of, integers_of(original, of))] for of in (outs, record.outs) if of is not None]
            if outs is not None and pair[0] == pair[1]:
                derived[number] = guards
        note_made(record, layouts)
    return derived


def _is_checked(record: Record) -> bool:
    """Return whether the Python meta function of a record's op rejects all sizes that the op rejects."""
    op = functional(record.op) if record.written else record.op
    pointwise = op is not None and torch.Tag.pointwise in op.tags
    return pointwise or record.op._schema.name.removeprefix("aten::") in CHECKED
