"""torch.OutOfMemoryError for a full device: the request, the live values with their source lines, and advice."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from lazytpu.engine.errors.origins import origins
from lazytpu.engine.errors.undo import before_trace, root_of
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.engine.memory.alive import LiveValue, MemoryReport, short, size
from lazytpu.runtime.buffers.buffer import MEMORY
from lazytpu.runtime.errors import CompileError, OutOfMemory, RunError
from lazytpu.runtime.xla.analysis import Memory
from lazytpu.trace.pending import Trace
from lazytpu.trace.value import Value

SHOWN = 5  # values in each list of the largest
RESULT = "result"
XLA_WORDS = 600  # characters of XLA's message, which on a TPU goes on to list all of its allocations


class OutOfMemoryError(OutOfMemory, torch.OutOfMemoryError):
    """Raised when the device has too little memory. It holds only numbers and text, so catching it keeps nothing alive.

    Attributes in addition to those in RunError:

    - `stage`: "compile", "run", "upload" or "read".
    - `memory`: XLA's analysis of the program, or None.
    - `before`: the report of live values at the failure.
    - `results`: the results that the program was to add, largest first.
    - `advice`: ways to need less memory.
    """

    def __init__(
        self,
        error: RunError | CompileError,
        stage: str,
        before: MemoryReport,
        *,
        program: str | None = None,
        memory: Memory | None = None,
        results: Sequence[LiveValue] = (),
        donated: int = 0,
        kept: Sequence[LiveValue] = (),
    ) -> None:
        super().__init__(program or error.program, error.reason, error.lost if isinstance(error, RunError) else ())
        self.stage = stage
        self.memory = memory
        self.before = before
        self.results = tuple(sorted(results, key=lambda value: -value.nbytes))
        self.advice = tuple(_advice(self, kept))
        self.args = ("\n".join(_lines(self, donated)),)


# A result may exceed the device's memory, since it need never be materialized: a program computes only the elements
# that are read. A tensor of more than ROOM times the memory takes too long to compute to be intended.
ROOM = 4


def check_size(dtype: torch.dtype, shape: Sequence[int]) -> None:
    """Raise RuntimeError, as torch does, for a tensor whose bytes do not fit into 64 bits. Raise torch.OutOfMemoryError
    for one larger than `ROOM` times the device's memory."""
    nbytes = dtype.itemsize * prod(shape)
    if nbytes > ROOM * MEMORY.limit:
        if nbytes > _COUNTED:
            raise RuntimeError(f"Storage size calculation overflowed with sizes={list(shape)}")
        kind = f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"
        raise torch.OutOfMemoryError(
            f"can't allocate memory: {kind} takes {size(nbytes)}, and the device has {size(int(MEMORY.limit))}"
        )


_COUNTED = (1 << 63) - 1  # bytes that XLA's 64-bit sizes can count


def of_cut(
    error: RunError | CompileError,
    trace: Trace,
    held: Sequence[tuple[int, Value]],
    names: dict[int, str],
    before: MemoryReport,
    compiled: Compiled | None,
) -> OutOfMemoryError:
    """Return the error of a cut whose live values are `held`.

    `names` maps slots of the trace to the names of values. `compiled` is the program that ran, None if XLA failed to
    compile it.
    """
    made_by = origins(trace.state.records(), [slot for slot, _ in held], error.program)
    results = [
        _value(value, RESULT, names.get(slot), origin) for (slot, value), origin in zip(held, made_by, strict=True)
    ]
    if compiled is None:
        return OutOfMemoryError(error, "run" if isinstance(error, RunError) else "compile", before, results=results)
    donated = sum(trace.buffers[i].nbytes for i in compiled.binding.donated)
    return OutOfMemoryError(
        error,
        "run",
        before,
        program=compiled.program.name,
        memory=compiled.program.memory,
        results=results,
        donated=donated,
        kept=_kept(trace, names),
    )


def _kept(trace: Trace, names: dict[int, str]) -> list[LiveValue]:
    """Return inputs that the trace overwrites but cannot donate, since the script still holds their old contents."""
    _, predecessors = before_trace(trace)
    overwritten = set(predecessors.values())
    named = {root_of(slot, predecessors): name for slot, name in names.items()}
    inputs = (slot for record in trace.state.records() for slot, _, empty in record.admitted if not empty)
    pairs = zip(trace.buffers, (trace.values[slot]() for slot in inputs), strict=True)
    alive = [(buffer, value) for buffer, value in pairs if value is not None and value.slot in overwritten]
    return [_value(value, "overwritten", named.get(value.slot), buffer.origin) for buffer, value in alive]


def _value(value: Value, category: str, name: str | None, origin: Any) -> LiveValue:
    """Return the description of a value for the report."""
    kind = value.layout
    op, program = (None, None) if origin is None else (origin.op, origin.program)
    nbytes, dtype = kind.dtype.itemsize * prod(kind.shape), str(kind.dtype).removeprefix("torch.")
    return LiveValue(nbytes, category, name, dtype, kind.shape, op, _line(origin), program)


def _line(origin: Any) -> str | None:
    return None if origin is None or origin.line is None else str(origin.line)


def _lines(error: OutOfMemoryError, donated: int) -> list[str]:
    """Return the lines of the message. `donated` are the bytes of donated inputs."""
    before, added = error.before, sum(value.nbytes for value in error.results)
    what = {
        "compile": f"{error.program} does not fit into the device's memory: XLA could not compile it",
        "run": f"the device's memory is too small to run {error.program}",
        "upload": "the device's memory is too small for data from the host",
        "read": f"the device ran out of memory while it ran {error.program}",
    }[error.stage]
    lines = [f"{what}.", f"  XLA says: {textwrap.shorten(error.reason, XLA_WORDS)}"]
    if error.memory is not None:
        m = error.memory
        lines.append(
            f"  It needs {size(m.peak)}: arguments {size(m.arguments)}, results {size(m.outputs)} "
            f"({size(m.aliased)} of them in memory of arguments), temporaries {size(m.temporaries)}."
        )
    lines.append(f"  The device has {size(before.free)} free of {size(before.total)}.")
    amounts = ", ".join(f"{name} {size(amount.nbytes)}" for name, amount in before.by_category().items())
    padding = f", of which {size(before.padding)} padding" if before.padding else ""
    alive = f"Alive before: {size(before.allocated)} ({amounts or 'nothing'}{padding})"
    lines.append(alive + _largest(before.values))
    if error.results:
        after = before.allocated - donated + added
        count = f"{len(error.results):,} results of the program, {size(added)}"
        lines.append(f"Alive after: {size(after)}, with {count}" + _largest(error.results))
    return lines + ["What helps:", *(f"  - {advice}" for advice in error.advice)]


def _largest(values: Sequence[LiveValue]) -> str:
    return "".join(["; the largest:" if values else "", *(f"\n  {value}" for value in values[:SHOWN])])


def _advice(error: OutOfMemoryError, kept: Sequence[LiveValue]) -> list[str]:
    """Return advice to reduce memory, the most reliable first. Each item must save at least a twentieth of the need."""
    before, memory = error.before.by_category(), error.memory
    results = sum(value.nbytes for value in error.results)
    enough = max(1, (memory.peak if memory is not None else error.before.allocated + results) // 20)
    advice: list[str] = []

    def alive(category: str) -> int:
        return before[category].nbytes if category in before else 0

    blocked = sum(value.nbytes for value in kept)
    if blocked >= enough:
        advice.append(
            f"{size(blocked)} are overwritten but cannot give their memory to the results, since other tensors of the "
            f"script still hold the old contents: drop them ({_where(kept)})."
        )
    if alive("gradients") >= enough:
        advice.append(
            f"gradients of an earlier step take {size(alive('gradients'))}: call optimizer.zero_grad() right after "
            "optimizer.step(), so that the next step starts without them."
        )
    if alive("activations") >= enough:
        advice.append(
            f"activations of an earlier forward pass take {size(alive('activations'))}: drop the tensors that hold its "
            "graph (a kept loss or output; keep loss.detach()), or run it under torch.no_grad()."
        )
    if error.before.padding >= enough:
        advice.append(
            f"padding takes {size(error.before.padding)}, since programs are made for many sizes: give the bounds that "
            'sizes come near to (lazytpu.options.buckets = (384, 512)), or none ("off").'
        )
    unnamed = [value for value in error.results if value.name is None]
    extra = sum(value.nbytes for value in unnamed)
    if extra >= enough:
        advice.append(
            f"{len(unnamed)} results of {size(extra)} belong to no module or optimizer, and are computed because "
            f"tensors of the script or the graph of autograd hold them ({_where(unnamed)}): what is dropped before the "
            "step ends takes no memory."
        )
    if memory is None or memory.temporaries >= enough:
        much = "" if memory is None else f"temporaries take {size(memory.temporaries)}: "
        advice.append(
            f"{much}a smaller batch (with gradient accumulation), torch.utils.checkpoint for what the backward pass "
            'keeps, or torch.autocast("tpu") for half of it.'
        )
    return advice or ["a smaller batch or model: nothing here could be freed."]


def _where(values: Sequence[LiveValue]) -> str:
    """Return the names or source lines of the three largest values."""
    largest = sorted(values, key=lambda value: -value.nbytes)[:3]
    return ", ".join(dict.fromkeys(value.name or short(value.line or value.op or "unknown") for value in largest))
