"""The trace trie: one State per path of records, with what a hit needs and, where traces end, their programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from lazytpu.trace.value import Layout


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument of a record: the slot of the value it reads and, unless natural, the view of it
    (size, stride, offset, dtype), strides and offset in elements of that dtype."""

    slot: int
    view: tuple[tuple[int, ...], tuple[int, ...], int, Any] | None


@dataclass(frozen=True, slots=True)
class Number:
    """A run-time number: its index in the trace's list of numbers, and its Python type. `dtype` is set if it was a 0-d
    tensor on the CPU, whose dtype takes part in type promotion."""

    index: int
    kind: type
    dtype: Any = None


@dataclass(frozen=True, slots=True)
class Record:
    """One recorded op: everything the miss path needs, and nothing that belongs to the user.

    `arguments` are by schema name: Operands, Numbers, lists of them, or static Python values. `outs` are the layouts of
    new results, flattened, None for an absent one; `out_slots` their slots. `written` maps the name of a mutated
    argument to the slots of its new values. `admitted` are (slot, layout, is_empty) of the values that this record is
    the first to use. `rng` is the index of the first of two run-time numbers (seed, offset) of a random op. `settings`
    are the global switches that affect it, with their values, read by `lazytpu.frontend.recording.ambient`.

    `in_backward` says whether a backward pass recorded it. `in_step` says whether it belongs to a step of a model or
    follows a record of one, in contrast to the preparation of data or weights. `in_graph` says whether autograd keeps
    it for a backward pass, and `call` the kind of model whose call recorded it. `tuned` says whether the passes for its
    program are to be chosen for it.
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
        """Whether other processes take part: it names its `members`."""
        return "members" in self.arguments


class Nowhere:
    """In place of a state's expected child when it has none: no edge leads to it."""

    key = None


NOWHERE: Final = Nowhere()
NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class Traits(NamedTuple):
    """What the records of a trace are: whether one belongs to a step, was kept by autograd when it was made, was made
    by a backward pass, has no result, or is a collective."""

    in_step: bool = False
    in_graph: bool = False
    in_backward: bool = False
    checks: bool = False
    collective: bool = False

    def followed_by(self, records: Sequence[Record]) -> Traits:
        """The traits of a trace that goes on with these records."""
        pairs = zip(self._fields, self, strict=True)
        return Traits(*[known or any(getattr(record, name) for record in records) for name, known in pairs])


@dataclass(frozen=True, slots=True)
class Marks:
    """Where traces are cut. `loop` is the repeated block recognized so far (see loops.py), and `ends` the cause of a
    cut at the state, if there is one. `starts` has the keys of records before which the trace is cut there, as before
    one that begins a step, and the causes of these cuts; `branches` counts those made because an evaluation goes on in
    another way."""

    loop: tuple[int, int] | None = None
    ends: str | None = None
    starts: Mapping[tuple[Any, ...], str] = field(default_factory=lambda: NOTHING)
    branches: Mapping[tuple[Any, ...], int] = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Views at offsets that vary (see lazytpu/frontend/recording/offsets.py): `copies` are the keys at the state that
    read such views, and `boxed` the slots of such tensors up to it."""

    copies: frozenset[tuple[Any, ...]] = frozenset()
    boxed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class OtherSizes:
    """Traces of other sizes. `grows` makes children that are known but for their sizes, and `grown` says that the state
    is one of them. `symbolic` are the records of a compiled graph with sizes where numbers vary, and the slot and dim
    that each of their symbols is, if that is known."""

    grows: Sequence[Grow] = ()
    grown: bool = False
    symbolic: tuple[tuple[Record, ...], Mapping[str, tuple[int, int]]] | None = None


NO_TRAITS, NO_MARKS, NO_OFFSETS, NO_SIZES = Traits(), Marks(), Offsets(), OtherSizes()


class State:
    """A node of the trie: the trace so far. From `outs` the kernel makes its results on a hit.

    1. A state stands for one sequence of records: `records()`. All that decides what these compute is in the keys of
       the edges that lead to it (R2).
    2. `recorded` are the records of the last edge: one, except for a compiled graph, which is one edge and expands to
       the records of its ops. `depth` counts records, `edges` what was recorded to come here.
    3. A trace that is at the state has so many `slots`, `inputs` and `numbers`: what a failed record rolls back to.
    4. `key` is that of the last edge, `parent.next[key]` the state itself, unless it was evicted. A root has no key,
       nor has the state of a part of a trace.
    5. `expected` is the child that the last trace took. A loop takes it again, so recording compares its `key` before
       it looks in `next`: a comparison costs half as much as a look-up, which has to hash.
    6. Nothing that belongs to the user is held here.

    What no hit needs is grouped, and shared by all states without it: `traits` of the records, `marks` of cuts,
    `offsets` that vary, other `sizes`. `constants` says for the slots that were read here how each is computed from
    constants, None if it is not (see constants.py). `plan` is set once a trace has ended here.
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
        """Take over what holds from a state on: the loop that it is in, and the tensors read at varying offsets."""
        if other.marks.loop is not None:
            self.marks = Marks(other.marks.loop)
        if other.offsets.boxed:
            self.offsets = Offsets(boxed=other.offsets.boxed)

    def add(self, key: tuple[Any, ...], child: State) -> None:
        """Let an edge with this key lead to `child`."""
        child.key = key
        self.next[key] = child

    def remove(self, child: State) -> None:
        """Take a child out of the trie, if it is still there: another thread may have been faster, and a state that was
        replaced by a more general one is evicted later."""
        assert child.key is not None
        if self.next.get(child.key) is child:
            self.next.pop(child.key, None)
        if self.expected is child:
            self.expected = NOWHERE

    def records(self) -> list[Record]:
        """The records from the root to this state, in order."""
        records: list[Record] = []
        state: State | None = self
        while state is not None:
            records.extend(reversed(state.recorded))
            state = state.parent
        records.reverse()
        return records


Grow: TypeAlias = "Callable[[State, tuple[Any, ...], Any], None]"
"""Adds states to one that a record with a key was not seen at, if it knows them; the third argument infers layouts."""


class Ended(State):
    """In place of a state at which the step is over. It has no edges, so the next record is a miss, which cuts."""

    __slots__ = ()
    parent: State

    def __init__(self, state: State):
        super().__init__(state, None, None, state.slots, state.inputs, state.numbers)


@dataclass(slots=True)
class CutPlan:
    """What a cut at one state needs: the slots that are inputs with a buffer, those that are results, and the programs
    compiled so far, by (live result slots, dead inputs). `checks` says whether a record without results checks values.

    `jobs` are the programs being compiled, and `steps`, by the same keys, the ways to run without them. `reads` are the
    splits of the trace by host reads (see reads.py), `ahead` the parts that were launched before their turn, by their
    records (see lazytpu/engine/cutting/deferred_cut.py), and `host` is how it runs on the host, once that was asked. A
    trace with a `collective` is run in pieces, and these are its steps. `copied` are the bytes of inputs that were
    copied for a program that takes them. `sized` is set while some of its programs are for many sizes (see
    lazytpu/engine/compiling/hot_sizes.py)."""

    inputs: tuple[int, ...]
    results: tuple[int, ...]
    programs: dict[tuple[tuple[int, ...], tuple[int, ...]], Any] = field(default_factory=dict[Any, Any])
    jobs: list[Any] = field(default_factory=list[Any])
    steps: dict[tuple[tuple[int, ...], tuple[int, ...]], Any] = field(default_factory=dict[Any, Any])
    reads: dict[tuple[int, int, int], Any] = field(default_factory=dict[Any, Any])
    ahead: dict[tuple[int, ...], Any] = field(default_factory=dict[Any, Any])
    host: Any = None
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
