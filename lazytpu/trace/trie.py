"""The trace trie: one State per sequence of records, with a hit's results and, at the ends of traces, a CutPlan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

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


class State:
    """A node of the trie: the trace so far.

    Invariants:

    1. `key` is the edge from `parent` to this state; `next` has the children by key.
    2. `expected` is the child that the last trace took, or NOWHERE. Recording compares its key before it looks in
       `next`, since a comparison costs half as much as hashing a key.
    3. `recorded` are the records of the edge: one, or all records of a compiled graph. Other records are in ancestors.
    4. `slots`, `inputs`, `numbers`, `depth` (records) and `edges` count from the root. A failed record restores them.
    5. `in_step`, `in_graph`, `in_backward`, `checks`, `collective`: whether any record from the root to this state
       belongs to a step, is kept by autograd, was recorded by a backward pass, checks values, or is a collective.

    Recording: `outs` are the layouts from which a kernel creates the results of a hit. `copies` are the keys of edges
    that read views at varying offsets, and `boxed` the slots of such tensors from the root (see
    lazytpu/frontend/recording/offsets.py). `constants` has the slots that were read at this state: how to compute each
    from constants, or None (see constants.py). `symbolic` are the records of a compiled graph with symbolic sizes, and
    the slot and dim of each symbol, where these are determined.

    Derived states: `grows` are functions that add children for new sizes; `grown` marks a state that one has added.

    Ends: `plan` has the programs of traces that were cut here. `loop` is the repeated block recognized here (see
    loops.py), and `ends` the cause of a cut at this state, or None. `starts` maps the keys of records before which a
    trace is cut here to the causes of these cuts. `branches` counts the cuts before evaluations that continue
    differently.
    """

    __slots__ = (
        "__weakref__",
        "boxed",
        "branches",
        "checks",
        "collective",
        "constants",
        "copies",
        "depth",
        "edges",
        "ends",
        "expected",
        "grown",
        "grows",
        "in_backward",
        "in_graph",
        "in_step",
        "inputs",
        "key",
        "loop",
        "next",
        "numbers",
        "outs",
        "parent",
        "plan",
        "recorded",
        "slots",
        "starts",
        "symbolic",
    )

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
        self.slots = slots  # counts of values, inputs and numbers up to here, which a failed record restores
        self.inputs = inputs
        self.numbers = numbers
        self.depth: int = (0 if parent is None else parent.depth) + len(self.recorded)
        self.edges: int = (0 if parent is None else parent.edges) + bool(self.recorded)
        self.plan: CutPlan | None = None
        self.loop: tuple[int, int] | None = None if parent is None else parent.loop
        self.ends: str | None = None
        self.in_step: bool = (parent is not None and parent.in_step) or any(r.in_step for r in self.recorded)
        self.in_graph: bool = (parent is not None and parent.in_graph) or any(r.in_graph for r in self.recorded)
        self.in_backward: bool = (parent is not None and parent.in_backward) or any(
            r.in_backward for r in self.recorded
        )
        self.starts: Mapping[tuple[Any, ...], str] = NOTHING
        self.branches: Mapping[tuple[Any, ...], int] = NOTHING
        self.copies: set[tuple[Any, ...]] | tuple[()] = ()
        self.boxed: frozenset[int] = frozenset() if parent is None else parent.boxed
        self.checks: bool = (parent is not None and parent.checks) or any(r.checks for r in self.recorded)
        self.collective: bool = (parent is not None and parent.collective) or any(r.collective for r in self.recorded)
        self.constants: Mapping[int, Any] = NOTHING
        self.symbolic: tuple[tuple[Record, ...], Mapping[str, tuple[int, int]]] | None = None
        self.grows: Sequence[Grow] = ()
        self.grown = False

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

    def records(self) -> list[Record]:
        """Return the records from the root to this state, in order."""
        records: list[Record] = []
        state: State | None = self
        while state is not None:
            records.extend(reversed(state.recorded))
            state = state.parent
        records.reverse()
        return records


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
    - `reads`: the splits of the trace by host reads (see reads.py).
    - `ahead`: parts that are launched before their turn, by their records (see
      lazytpu/engine/cutting/out_of_turn.py).
    - `host`: how the trace runs on the host, once determined.
    - `copied`: bytes of inputs that were copied for a program that donates them.
    - `sized`: set while some programs serve many sizes (see lazytpu/engine/compiling/hot_sizes.py).
    - `checks`: whether a record without results checks values.
    """

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
        return CutPlan(tuple(inputs), tuple(sorted(results)), checks=checks, collective=state.collective)
