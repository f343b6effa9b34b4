"""Trie states derived for new sizes by compiled expressions. Deriving a state takes 8 us. Recording it takes 300 us if
the record is inferred, and 200 us to infer its results with torch.

A chain is built from a trace family with three observed sizes. Its states are added where a trace leaves the recorded
paths with a key that the size expressions give. A wrong expression yields a key that no lookup has; that record is then
inferred as usual.

Recording continues with the layouts of results, and Python sees them, so they must be right. They are derived from the
layouts of operands (`results`), or torch infers them at each new size before a state has them (`Inference.agrees`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from lazytpu.aten.schema import functional
from lazytpu.engine.sizes.edges import Key, Reading, Source, at_sizes, expression, read_key
from lazytpu.engine.sizes.fitting import Varying
from lazytpu.engine.sizes.results import LARGEST, Results, integers_of
from lazytpu.engine.sizes.skeletons import SIZE, Layouts, note_given, note_made
from lazytpu.engine.sizes.unexpected import LookingFor
from lazytpu.ir.forms import symbol
from lazytpu.ir.symbolic import MIN_SYMBOL, Guard
from lazytpu.options import options
from lazytpu.ports import Inference
from lazytpu.trace.trie import Marks, Operand, OtherSizes, Record, State

AT_ONCE = 4
"""The greatest number of chains that begin at one state, where traces of several families have the same beginning."""

CHECKED = frozenset(
    """mm bmm addmm baddbmm sum mean cat stack copy_ _softmax _log_softmax _softmax_backward_data
    _log_softmax_backward_data gelu gelu_backward ones_like zeros_like native_layer_norm
    native_layer_norm_backward""".split()
)
"""Names of ops, in addition to pointwise ones, whose Python meta function rejects all sizes that the C++ one rejects.
For any other op, torch infers the results at each new size, since an error must be raised at its op."""

Sizes = tuple[int, ...]


@dataclass(eq=False)
class Segment:
    """Consecutive states whose sizes are all known once the first of them is recorded.

    - `twins`: the corresponding states of an observed trace.
    - `found`: the positions of new symbols among the integers of the first key.
    - `asked`: the numbers of the states whose results torch must infer.
    - `edges`: a function of the first key, an Inference and all symbols so far. It returns the edges to all states, or
      None if they are not known to be right.
    """

    twins: Sequence[State]
    found: tuple[int, ...]
    asked: tuple[int, ...]
    edges: Callable[..., Sequence[tuple[Key, Any, Record]] | None]


class Chain:
    """The states of a trace as functions of its sizes.

    `states` are the states of one observed trace and `reading` their integers; `varying` has the size expressions. The
    first `left` states are those that an earlier read left behind, and have no keys.

    `segments` is empty if no state can be derived. `begins` is the number of the state whose children the first segment
    gives, -1 for the root. With `of_left` that parent is any state that has the sizes left behind by the read.
    """

    def __init__(
        self, states: Sequence[State], left: int, reading: Reading, varying: Varying, inference: Inference
    ) -> None:
        self._states, self._reading, self._forms = states, reading, varying.forms()
        self._ends = [*reading.starts[1:], len(self._forms)]
        self._symbols = dict(sorted(self._shown(varying, left), key=lambda item: item[1]))
        self._shown_at = {name: self._state_of(at) for name, at in self._symbols.items()}
        self.segments: list[Segment] = []
        self.of_left = False
        self.begins = -1
        if not self._symbols:
            return
        first = min(self._shown_at.values())
        self.of_left = first < left
        results = Results(inference)
        for name, at in varying.symbols.items():
            results.begin(name, MIN_SYMBOL, reading.integers.values[at])
        self._edges = at_sizes(states, map(results.size, self._forms))
        self._guards = self._derived(results)
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
        """Yield the symbols, each with the position of the first key integer, or integer left by a read, that equals
        it."""
        for name in varying.symbols:
            for at in sorted(varying.varying[symbol(name)].tolist()):
                number = self._state_of(at)
                if number < left or at < self._reading.keys[number]:
                    yield name, at
                    break

    def _state_of(self, position: int) -> int:
        """Return the number of the state to which the integer at a position belongs."""
        return int(np.searchsorted(self._reading.starts, position, side="right")) - 1

    def _segment(self, start: int, end: int) -> Segment | None:
        """Return the segment of states `start` to `end`.

        Return None if there are none, or if a size of one depends on a symbol that only a later state shows.
        """
        names = [name for name, number in self._shown_at.items() if number <= start]
        starts, twins, source = self._reading.starts, self._states[start:end], Source()
        if not twins:
            return None
        head = source.of(self._edges[start][0])
        edges = [source.edge(*pair) for pair in zip(self._edges[start:end], twins, strict=True)]
        if any(size.symbols - set(names) for size in source.forms):
            return None
        # The edges are right if these sizes belong to the structure and give this key, if the layouts of results are as
        # derived, and if errors would name the right source line.
        places = range(starts[start], self._ends[end - 1])
        kinds = self._reading.integers.kinds
        sizes = {self._forms[at] for at in places if kinds[at] == SIZE} & source.forms.keys()
        least = ", ".join([*names, *[f"f[{source.forms[size]}]" for size in sizes]])
        guards = {guard: None for number in range(start, end) for guard in self._guards.get(number, ())}
        holds = [f"(({expression(guard.form)}) {guard.relation} 0) is {guard.holds}" for guard in guards]
        text = (
            f"def edges(key, inference, {', '.join(names)}):\n"
            f" f = ({''.join([f'{expression(size)}, ' for size in source.forms])})\n"
            f" if max(f, default=0) >= {LARGEST} or min(({least},)) < {MIN_SYMBOL} or {head} != key:\n  return None\n"
            f" if not ({' and '.join(holds) or True} and inference.at(first)):\n  return None\n"
            f" layout = inference.layout\n return ({', '.join(edges)},)\n"
        )
        scope = {"c": source.constants, "record": _record, "operand": Operand, "first": twins[0].recorded[0]}
        exec(compile(text, "<states known but for their sizes>", "exec"), scope)
        new = [self._symbols[name] - starts[start] for name in names if self._shown_at[name] == start]
        derived = () if options.verify_sizes else self._guards
        asked = tuple([number - start for number in range(start, end) if number not in derived])
        return Segment(twins, tuple(new), asked, scope["edges"])

    def _derived(self, results: Results) -> dict[int, tuple[Guard, ...]]:
        """Return the states whose result layouts follow from their size expressions, each with the guards under which
        they do."""
        layouts, derived = Layouts(), dict[int, tuple[Guard, ...]]()
        spans = zip(self._states, self._edges, self._reading.records, self._ends, strict=True)
        for number, (state, (_, _, record), at, end) in enumerate(spans):
            (original,) = state.recorded
            note_given(record, layouts)
            if all(size.number is not None for size in self._forms[at:end]):
                derived[number] = ()
            elif _is_checked(original):
                outs, guards = results.of(record, layouts)
                expressions = None if outs is None else [*map(results.derivation.form_of, integers_of(original, outs))]
                if expressions is not None and self._forms[end - len(expressions) : end] == expressions:
                    derived[number] = guards
            note_made(record, layouts)
        return derived

    @LookingFor("states of other sizes behind a read")
    def grow_on_left(self, integers: Sequence[int], parent: State, key: Key, inference: Inference) -> None:
        """Add the states of the first segment after the states that a read left behind; `integers` are the integers of
        these.

        Add nothing if one of the integers is an expression of a symbol that only a later state shows.
        """
        sizes = {name: integers[at] for name, at in self._symbols.items() if at < len(integers)}
        forms = self._forms[: len(integers)]
        if all(size.symbols <= sizes.keys() for size in forms) and [size.at(sizes) for size in forms] == list(integers):
            self.grow(0, tuple(sizes.values()), parent, key, inference)

    @LookingFor("states of other sizes")
    def grow(self, number: int, known: Sizes, parent: State, key: Key, inference: Inference) -> None:
        """Add the states of a segment as children of `parent`, if the segment's first key is `key`. `known` are the
        values of the symbols of earlier segments."""
        segment = self.segments[number]
        if segment.found:
            integers = read_key(key)
            if max(segment.found) >= len(integers):
                return
            known = *known, *[integers[at] for at in segment.found]
        try:
            edges = segment.edges(key, inference, *known)
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
        for (edge_key, outs, record), twin in zip(edges, segment.twins, strict=True):
            child = state.next.get(edge_key)
            if child is None:
                child = State(state, record, outs, twin.slots, twin.inputs, twin.numbers)
                child.inherit(twin)
                child.sizes = OtherSizes(grown=True)
                if twin.marks.starts and not twin.next:  # another step begins there, whatever its first record
                    child.marks = Marks(twin.marks.loop, next(iter(twin.marks.starts.values())))
                state.add(edge_key, child)
            state = child
        if number + 1 < len(self.segments):
            grows = (partial(self.grow, number + 1, known), *state.sizes.grows)[:AT_ONCE]
            state.sizes = state.sizes._replace(grows=grows)


def _record(of: Record, arguments: dict[str, Any], outs: Any, admitted: Any) -> Record:
    """Return a copy of a record with the arguments and layouts of other sizes."""
    return Record(
        of.op, arguments, outs, of.out_slots, of.written, admitted, of.line, of.rng, of.settings, of.in_backward,
        of.in_step, of.in_graph, of.call, of.tuned,
    )  # fmt: skip


def _is_checked(record: Record) -> bool:
    """Return whether the Python meta function of a record's op rejects all sizes that the op rejects."""
    op = functional(record.op) if record.written else record.op
    pointwise = op is not None and torch.Tag.pointwise in op.tags
    return pointwise or record.op._schema.name.removeprefix("aten::") in CHECKED
