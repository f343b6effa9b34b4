"""Short traces of few elements, run on the host as long as that is cheaper than to compile them.

A script has such traces between its steps: the sum of its losses, whether one is NaN, how many labels a batch has, a
`cat` of results that grows, each size once. Each would be a program, 30 to 60 ms, that may never run again. torch's own
kernels for the CPU compute it in 0.1 ms. Only ops whose results are rounded once, or not at all, run this way, and with
denormal numbers flushed as the device does, so that the bits are those of the program. What a trace has taken on the
host is added up, waiting for its inputs included; when a program would have cost less, it gets one, and keeps it.

A process whose traces are all short, as one that tries out ops, always gets programs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch

from lazytpu.aten.host_arrays import copied, to_numpy
from lazytpu.engine.compiling.choice import TINY
from lazytpu.engine.launching.inflight import Inflight
from lazytpu.options import options
from lazytpu.runtime import client
from lazytpu.runtime.buffer import MEMORY, Buffer, Origin
from lazytpu.runtime.errors import RunError
from lazytpu.trace.extract import Slots
from lazytpu.trace.recorder import Trace
from lazytpu.trace.settings import DEFAULT_DTYPE
from lazytpu.trace.trie import CutPlan, Number, Operand, Record
from lazytpu.trace.value import Layout, Value

BESIDE = 32
"Records of a trace of this process from which on it does more than try out ops."
RECORDS = 16
HOST = "the host"
"What `Origin.program` is of results."
ELEMENTS = 1024
"Of one value."
SECONDS = TINY
"What a trace may take on the host in all its runs, of CPU time and of waiting: about what its program costs."

_MOVES = ("cat", "clone", "copy", "stack", "repeat", "where", "zero")
_COMPARISONS = (
    "eq",
    "ge",
    "gt",
    "isfinite",
    "isinf",
    "isnan",
    "le",
    "logical_and",
    "logical_not",
    "logical_or",
    "lt",
    "ne",
)
_ROUNDED_ONCE = ("_to_copy", "add", "div", "mul", "sub")
_REDUCTIONS = ("all", "any", "mean", "sum")  # of floats only if there is one
_EXACT = frozenset((*_MOVES, *_COMPARISONS, *_ROUNDED_ONCE, *_REDUCTIONS))
_DTYPES = frozenset((torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64))
_REFUSED = ("alpha", "rounding_mode", "out")  # a second rounding, or another meaning


@dataclass(slots=True, eq=False)
class HostWay:
    """How a trace runs on the host: its records, the global switches they depend on, and what its runs have taken so
    far."""

    records: list[Record]
    layouts: dict[int, Layout]
    settings: frozenset[tuple[str, str]]
    seconds: float = 0.0


class OnHost:
    """Runs traces on the host. `largest` is the longest trace that this process has run; `undisturbed` hides ops from
    modes of the user."""

    def __init__(self, inflight: Inflight, undisturbed: Callable[[], AbstractContextManager[Any]]):
        self.inflight = inflight
        self.undisturbed = undisturbed
        self.largest = 0

    def run(self, plan: CutPlan, trace: Trace, held: Sequence[tuple[int, Value]]) -> bool:
        """Give the values `held`, all that are alive of a trace, their buffers. False when it should have a program:
        then nothing has happened."""
        self.largest = max(self.largest, trace.state.depth)
        way = self._way(plan, trace)
        if way is None or way.seconds > SECONDS or torch.is_autocast_enabled("cpu"):
            return False
        if not way.settings <= {(DEFAULT_DTYPE, str(torch.get_default_dtype()))}:
            return False
        metrics = self.inflight.metrics
        start, waited = time.thread_time(), metrics.wait_ms
        enabled = torch.is_grad_enabled()
        try:
            with self.undisturbed(), _flushing():
                buffers = self._compute(way, plan, trace, [slot for slot, _ in held])
        except Exception:  # noqa: BLE001  (whatever it is: the program meets it again, and raises it in full)
            buffers = None
        finally:
            torch.set_grad_enabled(enabled)  # an interrupt on the way into no_grad() or out of it would leave it off
        if buffers is None:
            way.seconds = SECONDS + 1
            return False
        for (_, value), buffer in zip(held, buffers, strict=True):
            value.buffer = buffer
        way.seconds += time.thread_time() - start + 1e-3 * (metrics.wait_ms - waited)
        return True

    def _way(self, plan: CutPlan, trace: Trace) -> HostWay | None:
        depth = trace.state.depth
        if self.largest < BESIDE or depth > RECORDS or plan.known or plan.checks or plan.collective or options.dump:
            return None
        if plan.host is None:
            records = trace.state.records()
            layouts = Slots(records).layouts
            possible = all(map(_small, layouts.values())) and all(_exact(record, layouts) for record in records)
            possible = possible and not _contracted(records, layouts)
            settings = frozenset(setting for record in records for setting in record.settings)
            plan.host = HostWay(records, layouts, settings, 0.0 if possible else SECONDS + 1)
        return cast("HostWay", plan.host)

    def _compute(self, way: HostWay, plan: CutPlan, trace: Trace, live: Sequence[int]) -> list[Buffer] | None:
        """The buffers of the slots `live`; None when an input failed."""
        buffers: list[Buffer] = trace.buffers
        self.inflight.settle_for(buffers)
        if any(buffer.error is not None or (buffer.outcome and buffer.outcome.errors) for buffer in buffers):
            return None
        layouts = way.layouts
        flat = {
            slot: copied(buffer.fetch() if buffer.host is None else buffer.host, layouts[slot].dtype)
            for slot, buffer in zip(plan.inputs, buffers, strict=True)
        }
        made_by: dict[int, Record] = {}
        for record in way.records:
            made_by.update((slot, record) for slot in _evaluate(record, flat, layouts, trace.numbers))
        return [_upload(flat[slot], layouts[slot], made_by[slot]) for slot in live]


def _evaluate(
    record: Record, flat: dict[int, torch.Tensor], layouts: dict[int, Layout], numbers: Sequence[Any]
) -> list[int]:
    """Compute what a record makes: the slots, whose elements are in `flat` then, in memory order."""
    for slot, layout, empty in record.admitted:
        if empty:
            flat[slot] = torch.zeros(prod(layout.shape), dtype=layout.dtype, device="cpu")
    for name, (slot,) in record.written.items():
        flat[slot] = flat[record.arguments[name].slot].clone()

    def argument(name: str, value: Any) -> Any:
        if isinstance(value, Operand):
            slot = record.written[name][0] if name in record.written else value.slot
            return _view(flat[slot], layouts[slot], value)
        if isinstance(value, Number):
            number = numbers[value.index]
            return number if value.dtype is None else torch.tensor(number, dtype=value.dtype, device="cpu")
        if isinstance(value, list):
            return [argument("", each) for each in cast("list[Any]", value)]
        return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value

    with torch.no_grad():
        given = {n: argument(n, v) for n, v in record.arguments.items() if n != "device"}
        result = record.op(**given)
        for slot in record.out_slots:
            layout = layouts[slot]
            if layout.dtype.is_floating_point and _name(record) in ("mean", "sum"):
                # Of one element, which torch adds to 0.0: -0.0 would become 0.0, and a denormal number be flushed.
                result = given["self"].to(layout.dtype).reshape(layout.shape)
            if (result.dtype, tuple(result.shape)) != (layout.dtype, layout.shape):
                raise RunError(str(record.op), f"got {result.dtype} {tuple(result.shape)}, expected {layout}")
            flat[slot] = torch.empty(prod(layout.shape), dtype=layout.dtype, device="cpu")
            flat[slot].as_strided(layout.shape, layout.stride).copy_(result)
    return [*record.out_slots, *(slot for slots in record.written.values() for slot in slots)]


def _view(flat: torch.Tensor, layout: Layout, operand: Operand) -> torch.Tensor:
    if operand.view is None:
        return flat.as_strided(layout.shape, layout.stride)
    size, stride, offset, _ = operand.view
    return flat.as_strided(size, stride, offset)


def _upload(flat: torch.Tensor, layout: Layout, record: Record) -> Buffer:
    array = to_numpy(flat).reshape(layout.memory_shape)
    MEMORY.note_execution(0, array.nbytes, 0)
    return Buffer(client.to_device(array), array.nbytes, Origin(str(record.op), record.line, HOST))


@contextmanager
def _flushing() -> Iterator[None]:
    """Denormal numbers count as zeros on this thread, as in XLA's programs for CPUs and TPUs: its pools of threads run
    that way, and a thread that runs a program itself switches."""
    smallest = sys.float_info.min
    if client.platform() == "gpu" or smallest / 2 == 0.0:
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _small(layout: Layout) -> bool:
    return layout.dtype in _DTYPES and 0 < prod(layout.shape) <= ELEMENTS


def _contracted(records: Sequence[Record], layouts: dict[int, Layout]) -> bool:
    """Whether XLA may multiply and add in one instruction, which rounds once: if products and sums of floats meet."""
    made = [
        (_name(r), layouts[slot])
        for r in records
        for slot in (*r.out_slots, *(s for w in r.written.values() for s in w))
    ]
    names = {name for name, layout in made if layout.dtype.is_floating_point}
    return "mul" in names and not names.isdisjoint(("add", "sub"))


def _name(record: Record) -> str:
    name = str(record.op).split(".")[1]
    return name.removesuffix("_") if record.written else name


def _exact(record: Record, layouts: dict[int, Layout]) -> bool:
    """Whether a record has the same bits on the host, and is one of those that `_evaluate` knows."""
    name = _name(record)
    operands = [o for v in record.arguments.values() for o in (cast("list[Any]", v) if isinstance(v, list) else [v])]
    tensors = [o for o in operands if isinstance(o, Operand)]
    if not str(record.op).startswith("aten.") or name not in _EXACT or any(n in record.arguments for n in _REFUSED):
        return False
    if record.rng is not None:
        return False
    if len(record.written) + len(record.out_slots) != 1 or any(len(slots) != 1 for slots in record.written.values()):
        return False
    if any(o.view is not None and o.view[3] != layouts[o.slot].dtype for o in tensors):
        return False
    floating = [layouts[o.slot].dtype.is_floating_point for o in tensors]
    made = [layouts[slot].dtype.is_floating_point for slot in (*record.out_slots, *sum(record.written.values(), ()))]
    elements = [prod(layouts[o.slot].shape if o.view is None else o.view[0]) for o in tensors]
    if any(count > ELEMENTS for count in elements):  # of a view that repeats its elements
        return False
    if name in _REDUCTIONS:
        return not any(floating + made) or all(count == 1 for count in elements)
    # What becomes of a NaN, or of a number that is too large, depends on the device.
    return name not in ("_to_copy", "copy") or any(made) or not any(floating)
