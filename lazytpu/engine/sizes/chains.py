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
from functools import partial
from typing import Any, cast

import torch

from lazytpu.aten.schema import functional
from lazytpu.engine.errors.unexpected import looking_for
from lazytpu.engine.sizes.edges import Edge, Key, at_sizes
from lazytpu.engine.sizes.fitting import Varying
from lazytpu.engine.sizes.results import LARGEST
from lazytpu.engine.sizes.skeletons import SIZE, Integers, forms_in, trace_apart
from lazytpu.ir.forms import Form, symbol
from lazytpu.ir.symbolic import MIN_SYMBOL, Derivation, Guard, Size
from lazytpu.options import options
from lazytpu.ports import Inference
from lazytpu.trace.extract import Slots, operands
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
    """Consecutive states, from `start` to `end`, whose sizes are all known once the key of the first one is.

    - `key`: the expressions of the integers of the first key, and `shown`: the positions of new symbols among them.
    - `sizes`: the expressions of sizes of tensors.
    - `guards`: the conditions under which the derived layouts of results hold.
    - `asked`: the numbers of the states whose results torch must infer.
    """

    start: int
    end: int
    key: Sequence[Form]
    shown: Mapping[str, int]
    sizes: Sequence[Form]
    guards: Sequence[Guard]
    asked: Sequence[int]


class Chain:
    """The states of a trace as functions of its sizes.

    `states` are the states of one observed trace, `sizes` its sizes, and `varying` the size expressions of its family.
    The first `left` states are those that an earlier read left behind, and have no keys.

    `segments` is empty if no state can be derived. `begins` is the number of the state whose children the first segment
    gives, -1 for the root. With `of_left` that parent is any state that has the sizes left behind by the read.
    """

    def __init__(self, states: Sequence[State], varying: Varying, sizes: Sizes, inference: Inference) -> None:
        self._states, self._varying, self._sizes = states, varying, sizes
        derivation, forms = Derivation(dict.fromkeys(sizes, (0, LARGEST)), sizes), varying.forms
        edges = at_sizes(states, map(derivation.size, forms))
        right = self._right(inference)
        trace_apart([*map(_record, states)], integers := Integers([], []))
        ends = [0, *integers.ends]
        self.left = sum(state.key is None for state in states)
        self._of_left = forms[: ends[self.left]]
        self._shown_by_left = {name: self._of_left.index(n) for name in sizes if (n := symbol(name)) in self._of_left}
        self.of_left = bool(self._shown_by_left)
        # Find the first key that has each other symbol. A segment begins with each such key.
        keys = [[*map(derivation.form_of, _integers(key))] for key, _, _ in edges[:right]]
        shown: dict[str, tuple[int, int]] = dict.fromkeys(self._shown_by_left, (self.left, -1))
        for number, key in enumerate(keys):
            for at, integer in enumerate(key):
                if [*integer.symbols] == [str(integer)]:
                    shown.setdefault(str(integer), (number, at))
        starts = sorted({number for number, _ in shown.values()})
        self.begins = starts[0] - 1 if starts else -1
        self.segments: list[Segment] = []
        if not starts or (not self.of_left and any(f.symbols for f in forms[: ends[max(self.begins + 1, 0)]])):
            return
        asked = self._asked([record for _, _, record in edges])
        copied = (i for i, state in enumerate(states[:right]) if state.offsets.copies and i > self.begins)
        last = next(copied, right - 1) + 1  # views that are copied have keys of their own
        for start, end in zip(starts, [*starts[1:], last], strict=True):
            known = {name for name, (number, _) in shown.items() if number <= start}
            positions = range(ends[start], ends[end := min(end, last)])
            if end <= start or any(forms[at].symbols - known for at in positions):
                break
            new = {name: at for name, (number, at) in shown.items() if number == start and at >= 0}
            of_tensors = dict.fromkeys([forms[at] for at in positions if integers.kinds[at] == SIZE])
            guards = dict.fromkeys([guard for i in range(start, end) for guard in varying.derived.get(i, ())])
            numbers = [i for i in asked if start <= i < end]
            sized = [form for form in of_tensors if form.symbols]
            self.segments.append(Segment(start, end, keys[start], new, sized, tuple(guards), numbers))

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
        values of the symbols of earlier segments.

        The states are right if all sizes belong to the structure, and if errors would name the right source line.
        """
        segment, integers = self.segments[number], _integers(key)
        if len(segment.key) != len(integers):
            return
        sizes = {**known, **{name: integers[at] for name, at in segment.shown.items()}}
        at = {**self._sizes, **sizes}  # other symbols are those of later segments
        if [form.at(at) for form in segment.key] != integers or not all(guard.at(at) for guard in segment.guards):
            return
        if min([*sizes.values(), *[form.at(at) for form in segment.sizes]]) < MIN_SYMBOL:
            return
        states = self._states[segment.start : segment.end]
        try:
            if max(at.values()) >= LARGEST or not inference.at(_record(states[0])):
                return
            edges = self._at(at, segment.end, inference)[segment.start :]
        except (RuntimeError, NotImplementedError):  # too large for the device: recording raises the error
            return
        if edges[0][0] != key:
            return
        # Ask torch for result layouts that are not derived.
        if segment.asked:
            previous = parent.records()
            records = [*previous, *[record for _, _, record in edges]]
            if not inference.agrees(records, [len(previous) + i - segment.start for i in segment.asked]):
                return
        state = parent
        # Add the states that the trie does not have yet, and let the next segment begin after them.
        for (edge_key, outs, record), twin in zip(edges, states, strict=True):
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
            grows = (partial(self.grow, number + 1, sizes), *state.sizes.grows)[:AT_ONCE]
            state.sizes = state.sizes._replace(grows=grows)

    def _at(self, sizes: Sizes, end: int, inference: Inference) -> list[Edge]:
        """Return the edges into the first `end` states at these sizes."""
        return at_sizes(self._states[:end], iter(self._varying.at(sizes)), inference.layout)

    def _right(self, inference: Inference) -> int:
        """Return the number of edges before the first one that differs at its own sizes from the recorded one."""
        edges = self._at(self._sizes, len(self._states), inference)
        for number, ((key, _, record), twin) in enumerate(zip(edges, self._states, strict=True)):
            outs, recorded = ([out and out.key for out in of.outs] for of in (record, _record(twin)))
            if key != (twin.key or ()) or outs != recorded:
                return number
        return len(edges)

    def _asked(self, records: Sequence[Record]) -> list[int]:
        """Return the numbers of the records with symbolic sizes whose results torch must infer: sizes concern them, and
        they are not derived, or the op may reject sizes for which they are."""
        layouts, asked = Slots(records).layouts, list[int]()
        for number, record in enumerate(records):
            read = [layouts[operand.slot] for value in record.arguments.values() for operand in operands(value)]
            derived = number in self._varying.derived and _is_checked(_record(self._states[number]))
            if options.verify_sizes or (not derived and forms_in((record, read))):
                asked.append(number)
        return asked


def _record(state: State) -> Record:
    """Return the only record of a state."""
    (record,) = state.recorded
    return record


def _integers(key: Any) -> list[Any]:
    """Return the integers of a key, which may be symbolic."""
    if isinstance(key, tuple):
        return [integer for token in cast("tuple[Any, ...]", key) for integer in _integers(token)]
    return [key] if type(key) in (int, Size) else []


def _is_checked(record: Record) -> bool:
    """Return whether the Python meta function of a record's op rejects all sizes that the op rejects."""
    op = functional(record.op) if record.written else record.op
    pointwise = op is not None and torch.Tag.pointwise in op.tags
    return pointwise or record.op._schema.name.removeprefix("aten::") in CHECKED
