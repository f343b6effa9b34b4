"""The trace trie: one State per sequence of records, with a hit's results and, at the ends of traces, a CutPlan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from lazytpu.trace.value import Layout


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument of a record: the slot of its value and its view of that value; None for the natural view.

    A view is (size, stride, offset, dtype), with stride and offset in elements of that dtype.
    """

    slot: int
    view: tuple[tuple[int, ...], tuple[int, ...], int, Any] | None


@dataclass(frozen=True, slots=True)
class Number:
    """A run-time number: its index in the trace's list of numbers, and its Python type.

    `dtype` is set for a 0-d CPU tensor, whose dtype takes part in type promotion.
    """

    index: int
    kind: type
    dtype: Any = None


@dataclass(frozen=True, slots=True)
class Record:
    """One recorded op, with everything that the miss path needs, and no object of the user's.

    - `arguments`: by schema name, an Operand, a Number, a list of these, or a static Python value.
    - `outs`: the layouts of new results, flattened, with None for an absent one; `out_slots` are their slots.
    - `written`: name of a mutated argument -> slots of its new values.
    - `admitted`: (slot, layout, is_empty) of the values that this record is the first to use.
    - `rng`: for a random op, the index of the first of two run-time numbers (seed, offset).
    - `settings`: the global switches that affect it, with their values, read by `lazytpu.frontend.recording.ambient`.
    - `in_backward`: whether a backward pass recorded it.
    - `in_step`: whether it belongs to a step of a model or follows such a record; false for the preparation of data or
      weights.
    - `in_graph`: whether autograd keeps it for a backward pass. `call`: the kind of model whose call recorded it.
    - `tuned`: whether passes are selected for its program.
    """

    op: Any
    arguments: dict[str, Any]
    outs: tuple[Layout | None, ...]
    out_slots: tuple[int, ...]
    written: dict[str, tuple[int, ...]]
    admitted: tuple[tuple[int, Layout, bool], ...]
    line: Any
    rng: int | None = None
    settings: tuple[tuple[str, str], ...] = ()
    in_backward: bool = False
    in_step: bool = False
    in_graph: bool = False
    call: str | None = None
    tuned: bool = False

    @property
    def checks(self) -> bool:
        """Whether it has no result: it checks values, or marks a position."""
        return not self.out_slots and not self.written

    @property
    def collective(self) -> bool:
        """Whether other processes take part in it; such an op has the argument `members`."""
        return "members" in self.arguments


class Nowhere:
    """The expected child of a state without one; no edge leads to it."""

    key = None


NOWHERE: Final = Nowhere()
NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class Traits(NamedTuple):
    """Traits of a trace: whether any record belongs to a step, was kept by autograd when it was recorded, was recorded
    by a backward pass, has no result, or is a collective."""

    in_step: bool = False
    in_graph: bool = False
    in_backward: bool = False
    checks: bool = False
    collective: bool = False

    def followed_by(self, records: Sequence[Record]) -> Traits:
        """The traits of a trace that goes on with these records."""
        pairs = zip(self._fields, self, strict=True)
        return Traits(*[present or any(getattr(record, name) for record in records) for name, present in pairs])


class Marks(NamedTuple):
    """Where traces are cut. `loop` is the repeated block recognized so far (see loops.py), and `ends` the cause of a
    cut at the state, if there is one. `starts` has the keys of records before which the trace is cut there, as before
    one that begins a step, and the causes of these cuts; `branches` counts those made because an evaluation goes on in
    another way."""

    loop: tuple[int, int] | None = None
    ends: str | None = None
    starts: Mapping[tuple[Any, ...], str] = NOTHING
    branches: Mapping[tuple[Any, ...], int] = NOTHING


class Offsets(NamedTuple):
    """Views at offsets that vary (see lazytpu/frontend/recording/offsets.py): `copies` are the keys at the state that
    read such views, and `boxed` the slots of such tensors up to it."""

    copies: frozenset[tuple[Any, ...]] = frozenset()
    boxed: frozenset[int] = frozenset()


class OtherSizes(NamedTuple):
    """Traces of other sizes. `grows` makes children that are known but for their sizes, and `grown` says that the state
    is one of them. `symbolic` are the records of a compiled graph with sizes where numbers vary, and the slot and dim
    that each of their symbols is, if that is known."""

    grows: Sequence[Grow] = ()
    grown: bool = False
    symbolic: tuple[tuple[Record, ...], Mapping[str, tuple[int, int]]] | None = None


NO_TRAITS, NO_MARKS, NO_OFFSETS, NO_SIZES = Traits(), Marks(), Offsets(), OtherSizes()


class State:
    """A node of the trie: the trace so far.

    Invariants:

    1. A state stands for one sequence of records: `records()`. The keys of the edges that lead to it contain everything
       that decides what these compute (R2).
    2. `recorded` are the records of the last edge: one, or all records of a compiled graph. `depth` counts records and
       `edges` the edges, from the root.
    3. A trace at the state has this many `slots`, `inputs` and `numbers`. A failed record restores them.
    4. `key` is the edge from `parent` to this state, and `parent.next[key]` is the state, unless it was evicted. A root
       has no key, nor has the state of a part of a trace.
    5. `expected` is the child that the last trace took, or NOWHERE. Recording compares its key before it looks in
       `next`, since a comparison costs half as much as hashing a key.
    6. A state holds nothing that belongs to the user.

    `outs` are the layouts from which a kernel creates the results of a hit. Fields that no hit needs are grouped, and
    all states without them share one group: `traits` of the records, `marks` of cuts, `offsets` that vary, other
    `sizes`. `constants` has the slots that were read at this state: how to compute each from constants, or None (see
    constants.py). `plan` has the programs of traces that were cut here.
    """

    __slots__ = (
        "__weakref__", "constants", "depth", "edges", "expected", "inputs", "key", "marks", "next", "numbers",
        "offsets", "outs", "parent", "plan", "recorded", "sizes", "slots", "traits",
    )  # fmt: skip

    key: tuple[Any, ...] | None
    expected: State | Nowhere

    def __init__(
        self,
        parent: State | None,
        record: Record | tuple[Record, ...] | None,
        outs: Any,
        slots: int,
        inputs: int,
        numbers: int,
    ):
        self.key = None
        self.expected = NOWHERE
        self.next: dict[tuple[Any, ...], State] = {}
        self.parent = parent
        self.recorded: tuple[Record, ...] = (record,) if isinstance(record, Record) else record or ()
        self.outs = outs
        self.slots = slots
        self.inputs = inputs
        self.numbers = numbers
        self.depth: int = (0 if parent is None else parent.depth) + len(self.recorded)
        self.edges: int = (0 if parent is None else parent.edges) + bool(self.recorded)
        self.plan: CutPlan | None = None
        self.constants: Mapping[int, Any] = NOTHING
        self.traits, self.marks, self.offsets, self.sizes = NO_TRAITS, NO_MARKS, NO_OFFSETS, NO_SIZES
        if parent is not None:
            traits = parent.traits.followed_by(self.recorded)
            self.traits = parent.traits if traits == parent.traits else traits
            self.inherit(parent)

    def inherit(self, other: State) -> None:
        """Take over the lasting properties of another state: its loop, and its tensors read at varying offsets."""
        if other.marks.loop is not None:
            self.marks = Marks(other.marks.loop)
        if other.offsets.boxed:
            self.offsets = Offsets(boxed=other.offsets.boxed)

    def add(self, key: tuple[Any, ...], child: State) -> None:
        """Add an edge with this key to `child`."""
        child.key = key
        self.next[key] = child

    def remove(self, child: State) -> None:
        """Remove a child from the trie, if it is still there.

        Another thread may have removed it, and a state that a more general one has replaced is evicted later.
        """
        assert child.key is not None
        if self.next.get(child.key) is child:
            self.next.pop(child.key, None)
        if self.expected is child:
            self.expected = NOWHERE

    def path(self) -> list[State]:
        """Return the states from the root to this state, in order."""
        path: list[State] = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return path[::-1]

    def records(self) -> list[Record]:
        """Return the records from the root to this state, in order."""
        return [record for state in self.path() for record in state.recorded]


Grow: TypeAlias = "Callable[[State, tuple[Any, ...], Any], None]"
"""Adds children to a state that lacks one for the key, if it can derive them; the third argument infers layouts."""


class Ended(State):
    """The recorder's placeholder after a step's end. It has no edges, so the next record is a miss, which cuts."""

    __slots__ = ()
    parent: State

    def __init__(self, state: State):
        super().__init__(state, None, None, state.slots, state.inputs, state.numbers)


@dataclass(slots=True)
class CutPlan:
    """The programs for cuts at one state, and the slots that they use.

    - `inputs` and `results`: the slots of inputs with a buffer, and of possible results.
    - `programs`: the compiled programs by (live result slots, dead inputs); `jobs`: the programs being compiled.
    - `steps`: by the same keys, strategies to run without a complete program. A trace with a `collective` runs in
      pieces, and these are its steps.
    - `whole`: by the same keys, the whole program of a trace with a `collective` (see
      lazytpu/engine/cutting/windows.py).
    - `reads`: the splits of the trace by host reads (see reads.py).
    - `ahead`: parts that are launched before their turn, by their records (see
      lazytpu/engine/cutting/deferred_cut.py).
    - `host`: how the trace runs on the host, once determined.
    - `numbers`: how the host computes a trace of numbers that it knows, once determined.
    - `copied`: bytes of inputs that were copied for a program that donates them.
    - `sized`: set while some programs serve many sizes (see lazytpu/engine/compiling/hot_sizes.py).
    - `checks`: whether a record without results checks values.
    """

    inputs: tuple[int, ...]
    results: tuple[int, ...]
    programs: dict[tuple[tuple[int, ...], tuple[int, ...]], Any] = field(default_factory=dict[Any, Any])
    jobs: list[Any] = field(default_factory=list[Any])
    steps: dict[tuple[tuple[int, ...], tuple[int, ...]], Any] = field(default_factory=dict[Any, Any])
    whole: dict[tuple[tuple[int, ...], tuple[int, ...]], Any] = field(default_factory=dict[Any, Any])
    reads: dict[tuple[int, int, int], Any] = field(default_factory=dict[Any, Any])
    ahead: dict[tuple[int, ...], Any] = field(default_factory=dict[Any, Any])
    host: Any = None
    numbers: Any = None
    copied: int = 0
    sized: Any = None
    checks: bool = False
    collective: bool = False

    @property
    def known(self) -> bool:
        """Whether there is a program, or one is being compiled."""
        return bool(self.programs or self.jobs)

    @staticmethod
    def of(state: State) -> CutPlan:
        """The plan of a trace that ends at `state`."""
        inputs: list[int] = []
        results: list[int] = []
        checks = False
        for record in state.records():
            checks = checks or not (record.out_slots or record.written)
            for slot, _, empty in record.admitted:
                (results if empty else inputs).append(slot)
            results.extend(record.out_slots)
            for slots in record.written.values():
                results.extend(slots)
        return CutPlan(tuple(inputs), tuple(sorted(results)), checks=checks, collective=state.traits.collective)
