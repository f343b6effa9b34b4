"""The miss path of a captured graph: add its records to the caller's trace, and plan its hits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from lazytpu.dynamo.results import Capture, Fresh, Input, RandomState, Static, Unwritten, View
from lazytpu.frontend.recording import ambient
from lazytpu.frontend.recording.admitted import admitted
from lazytpu.frontend.recording.not_recorded import cut_first
from lazytpu.frontend.recording.required_cuts import note_idle, note_start
from lazytpu.frontend.recording.step_starts import belongs_to_step
from lazytpu.frontend.tensors import value_of
from lazytpu.frontend.torch_private import backward_id
from lazytpu.trace.loops import watch
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import Number, Operand, OtherSizes, Record, State
from lazytpu.trace.value import Layout, Value, row_major


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of a hit. New slots are numbered from the first free slot after the arguments are admitted.

    - `uploads`: constants to admit after the arguments.
    - `slots`: the number of new slots. `values`: (slot, layout) of the slots that become values.
    - `written`: (argument, index of the value that its storage gets). `moved`: (argument, argument whose value it
      gets).
    - `numbers`, `draws`, `given`: as in the capture.
    - `results`: (kind, source, view, shared). `source` has the tensor's value, and `view` is its view of that. `shared`
      results have a common source, and so a common version counter. The usual kind is "whole": a contiguous value of a
      single result; `view` is its size then.
    """

    uploads: tuple[Value, ...]
    slots: int
    values: tuple[tuple[int, Layout], ...]
    written: tuple[tuple[int, int], ...]
    moved: tuple[tuple[int, int], ...]
    numbers: tuple[Any, ...]
    draws: tuple[tuple[int, tuple[int, int] | None], ...]
    given: tuple[tuple[int, int], ...]
    results: tuple[tuple[str, Any, Any, bool], ...]


def plan_of(capture: Capture) -> tuple[Plan, dict[int, int]]:
    """Return the plan of a capture, and the index of each slot that is not an input."""
    ranks: dict[int, int] = {}
    for slot in range(capture.slots):
        if slot not in capture.inputs and slot not in capture.uploads:
            ranks[slot] = len(ranks)
    order = {slot: index for index, slot in enumerate(capture.values)}
    results: list[tuple[str, Any, View | None]] = []
    layouts: dict[Any, Layout] = {}
    for result in capture.results:
        match result:
            case Input(index, view):
                results.append(("argument", index, view))
            case Fresh(slot, view) if slot in order:
                results.append(("value", order[slot], view))
                layouts[order[slot]] = capture.values[slot]
            case Fresh(slot, view):
                results.append(("shared", capture.inputs[slot], view))
            case Unwritten(number, layout, view):
                results.append(("unwritten", (number, layout), view))
            case RandomState(draw):
                results.append(("state", draw, None))
            case Static(value):
                results.append(("static", value, None))
    uses = Counter([(kind, source) for kind, source, _ in results if kind in ("value", "shared", "unwritten")])

    def planned(kind: str, source: Any, view: View | None) -> tuple[str, Any, Any, bool]:
        shared = kind == "argument" or uses[kind, source] > 1
        size = _whole(layouts[source], view) if kind == "value" and not shared else None
        return (kind, source, view, shared) if size is None else ("whole", source, size, False)

    return (
        Plan(
            tuple(capture.uploads.values()),
            len(ranks),
            tuple([(ranks[slot], layout) for slot, layout in capture.values.items()]),
            tuple([(index, order[slot]) for index, slot in capture.written.items() if slot in order]),
            tuple([(index, capture.inputs[slot]) for index, slot in capture.written.items() if slot not in order]),
            capture.numbers,
            capture.draws,
            capture.given,
            tuple([planned(*result) for result in results]),
        ),
        ranks,
    )


def _whole(layout: Layout, view: View | None) -> tuple[int, ...] | None:
    """Return the size of a view that covers all elements in row-major order, else None."""
    if not layout.contiguous or view is None:
        return layout.shape if layout.contiguous else None
    size, stride, _, dtype = view
    same = dtype is layout.dtype and prod(size) == prod(layout.shape) and stride == row_major(size)
    return size if same and 0 not in size else None


def splice(
    r: Recorder,
    key: tuple[Any, ...],
    args: Sequence[Any],
    capture: Capture,
    differentiated: bool,
    tuned: bool,
) -> State:
    """Add the graph's records as one state to the trie under `key`, and return this state.

    The arguments are admitted already, and the graph's numbers appended. `differentiated` says whether the graph has a
    backward graph, and `tuned` whether passes are selected for its program.

    Raises NotRecorded when a step begins with the graph: the trace is cut first.
    """
    parent = r.state
    fused = r.mode == "fused"
    in_step = parent.traits.in_step or differentiated or belongs_to_step(args)
    if fused and in_step and not parent.traits.in_step and (cause := note_start(parent, key)) is not None:
        raise cut_first(r, cause)
    plan, ranks = plan_of(capture)
    first = r.slots
    slots = {slot: first + rank for slot, rank in ranks.items()}
    slots |= {slot: r.slot(value_of(args[index])) for slot, index in capture.inputs.items()}
    slots |= {slot: r.slot(value) for slot, value in capture.uploads.items()}
    renumber = _Renumbering(slots, parent.numbers)
    flags = {"in_backward": backward_id() != -1, "in_step": in_step, "in_graph": differentiated, "tuned": tuned}
    inputs = admitted(r, parent)

    def records(of: Sequence[Record], layouts: Mapping[int, Layout]) -> tuple[Record, ...]:
        spliced = [replace(renumber.record(record, ranks), **flags) for record in of]
        layouts_of_inputs = tuple([(slot, layouts.get(slot, kind), empty) for slot, kind, empty in inputs])
        spliced[0] = replace(spliced[0], admitted=(*layouts_of_inputs, *spliced[0].admitted))
        return tuple(spliced)

    state = State(parent, records(capture.records, {}), plan, first + plan.slots, len(r.buffers), len(r.numbers))
    if (expressed := capture.expressed) is not None:
        layouts = {r.slot(value_of(args[index])): layout for index, layout in expressed.layouts.items()}
        symbols = {name: (r.slot(value_of(args[index])), dim) for name, (index, dim) in expressed.symbols.items()}
        state.sizes = OtherSizes(symbolic=(records(expressed.records, layouts), symbols))
    if fused:
        watch(state)
        note_idle(state)
    parent.add(ambient.keyed(key, ambient.SWITCHES), state)
    return state


class _Renumbering:
    """The mapping of a capture's records to the slots and numbers of the caller's trace."""

    def __init__(self, slots: dict[int, int], numbers: int):
        self.slots = slots
        self.numbers = numbers

    def record(self, record: Record, new_slots: Container[int]) -> Record:
        return replace(
            record,
            arguments={name: self._argument(value) for name, value in record.arguments.items()},
            out_slots=tuple([self.slots[slot] for slot in record.out_slots]),
            written={name: tuple([self.slots[slot] for slot in slots]) for name, slots in record.written.items()},
            admitted=tuple([(self.slots[slot], *info) for slot, *info in record.admitted if slot in new_slots]),
            rng=None if record.rng is None else record.rng + self.numbers,
        )

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Operand):
            return Operand(self.slots[value.slot], value.view)
        if isinstance(value, Number):
            return Number(value.index + self.numbers, value.kind, value.dtype)
        if isinstance(value, list):
            return [self._argument(v) for v in value]
        return value
