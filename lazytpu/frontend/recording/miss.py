"""The miss path of recording: a record without an edge at the trie's state is checked, inferred, and added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

import lazytpu.frontend.inference.formats
import lazytpu.frontend.inference.fourier
import lazytpu.frontend.inference.grouped
import lazytpu.frontend.inference.normalization
import lazytpu.frontend.inference.numbers
import lazytpu.frontend.inference.quantization
import lazytpu.frontend.inference.scans
import lazytpu.frontend.inference.unpool  # noqa: F401 (their meta functions register)
from lazytpu.frontend import activation
from lazytpu.frontend.inference.cpu_warnings import warn
from lazytpu.frontend.inference.dtype_support import check_dtypes, huge_numbers
from lazytpu.frontend.inference.infer import infer, is_pointwise
from lazytpu.frontend.inference.platforms import check_platform
from lazytpu.frontend.inference.size_support import check_dims
from lazytpu.frontend.lines import call_site, note_forward, recorded_line
from lazytpu.frontend.recording import ambient, specialization
from lazytpu.frontend.recording.admitted import admitted
from lazytpu.frontend.recording.codegen import KernelArgument
from lazytpu.frontend.recording.creation import check_device, check_layout, elsewhere, is_elsewhere
from lazytpu.frontend.recording.first_states import first_state
from lazytpu.frontend.recording.growing import grown
from lazytpu.frontend.recording.keys import ABSENT
from lazytpu.frontend.recording.not_recorded import NotRecorded, cut_first
from lazytpu.frontend.recording.offsets import on_copies, varying_views
from lazytpu.frontend.recording.one_by_one import on_each_device, on_several_devices, record_each, shares_elements
from lazytpu.frontend.recording.replayed_lines import note_replayed
from lazytpu.frontend.recording.required_cuts import note_branch, note_idle, note_start, required_cut
from lazytpu.frontend.recording.retyping import retype, written_bytes
from lazytpu.frontend.recording.step_starts import (
    belongs_to_step,
    called_again,
    is_differentiated,
    keeps_graph,
    may_require_grad,
)
from lazytpu.frontend.recording.subclasses import has_overriding, with_plain
from lazytpu.frontend.recording.writes import check_writes, warn_of_expanded
from lazytpu.frontend.torch_private import backward_id, current_node
from lazytpu.ports import OpFacts
from lazytpu.trace.cuts import AGAIN, THREAD
from lazytpu.trace.loops import watch
from lazytpu.trace.recorder import PendingElsewhere, Recorder
from lazytpu.trace.trie import Number, Operand, Record, State
from lazytpu.trace.value import Layout


@dataclass
class RecordingKernel:
    """One op's recording kernel: its generated Python source, and the data for its miss path."""

    op: OpOverload
    facts: OpFacts
    source: str
    arguments: list[KernelArgument]
    schema_names: list[str]
    returns_one: bool
    scalars: specialization.SpecializedScalars | None
    call: Callable[..., Any] = field(default=lambda: None)

    def again(self, args: Sequence[Any]) -> Any:
        """Call the kernel again with the same arguments."""
        return self.pass_to(self.call, args)

    def pass_to(self, call: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call a function that has the op's signature with arguments of the kernel."""
        positional = [v for a, v in zip(self.arguments, args, strict=True) if not a.keyword]
        keywords = {a.name: v for a, v in zip(self.arguments, args, strict=True) if a.keyword and v is not ABSENT}
        while positional and positional[-1] is ABSENT:
            positional.pop()
        return call(*positional, **keywords)


def failed(k: RecordingKernel, r: Recorder, error: BaseException, args: tuple[Any, ...]) -> Any:
    """Handle the error of a record that was rolled back; the recorder's lock is not held.

    - An alternative to recording that `miss` chose runs.
    - The recorder is cut where an operand is pending in it, and the op is retried.
    - The elements of lists that are on several devices are computed one by one, each on its own device.
    - Where an argument's class overrides attributes that kernels read, the error may be its doing.
    - Any other error is raised.
    """
    if isinstance(error, PendingElsewhere):
        owner = error.value.recorder
        assert owner is not None
        owner.cut(THREAD, call_site())
        if error.value.buffer is None:
            raise RuntimeError(f"{k.op}: an operand was never computed ({error.value})")
    elif isinstance(error, NotRecorded):
        result = error.instead()
        if not error.again:
            return result
    elif isinstance(error, Exception) and has_overriding(args):
        return with_plain(k.again, args)
    elif isinstance(error, RuntimeError) and on_several_devices(k.op, args):
        return on_each_device(k.op, partial(k.pass_to, k.op), args)
    else:
        try:
            raise error
        finally:
            del error, args  # its traceback refers to this frame, which refers to it and to the user's tensors (R4)
    return k.again(args)


def miss(k: RecordingKernel, r: Recorder, key: tuple[Any, ...], args: tuple[Any, ...]) -> State:
    """Return the state after a record without an edge at the recorder's state. The checks rely on the ones before:

    1. No argument's class overrides attributes that kernels read; otherwise the op is called with plain aliases.
    2. A number that is known to vary has a general edge, which is a hit.
    3. No cut is required before the record.
    4. A record that is known but for its sizes has its state derived, without inference.
    5. No step begins with the record, unless the trace does, too.
    6. No byte memory is written as numbers; otherwise its storage gets a value of that dtype.
    7. No view is read or written at an offset that varies; otherwise the op gets a copy of it.
    8. The results of an evaluated model are used as before; otherwise the trace is cut.
    9. The result is on this device.
    10. torch and the device accept the arguments: `infer` gives the layouts of the results.
    11. No element of a written list shares memory with another; otherwise the elements are recorded one by one.
    12. No optimizer creates its state; otherwise the state is uploaded.

    Only then the record joins the trie (`_add`, from 9 on). An alternative to recording is raised as NotRecorded. The
    recorder is rolled back, so an op that is refused leaves no trace.
    """
    if has_overriding(args):
        raise NotRecorded(lambda: with_plain(k.again, args))
    parent = r.state
    general = None if k.scalars is None else k.scalars.generalize(key)
    if general is not None:
        seen = parent.next.get(general.key)
        if seen is not None:
            r.numbers.extend(general.numbers)
            return seen
    fused = r.mode == "fused"
    if (cause := required_cut(parent, key, fused)) is not None:
        raise cut_first(r, cause)
    seen = grown(parent, key)
    if seen is None and general is not None:
        seen = grown(parent, general.key)
        r.numbers.extend(general.numbers if seen is not None else ())
    if seen is not None:
        return seen
    in_step = parent.traits.in_step or belongs_to_step(args)
    if fused and in_step and not parent.traits.in_step:
        cause = note_start(parent, key)
    call = None
    if fused and in_step and cause is None and backward_id() == -1:
        call, again = called_again(r, parent)
        cause = note_start(parent, key, AGAIN) if again else None
    if cause is not None:
        raise cut_first(r, cause)
    if tensors := written_bytes(k.arguments, args):
        raise NotRecorded(lambda: retype(tensors), again=True)
    if views := varying_views(parent, k.op, k.arguments, key, args):
        raise NotRecorded(lambda: on_copies(views, r, args, k.again))
    if fused and parent.traits.in_step and call is None and backward_id() == -1 and not keeps_graph(r, parent):
        if general is None or k.scalars is None or k.scalars.other_value(parent, key, general) is None:
            if (cause := note_branch(parent, key)) is not None:
                raise cut_first(r, cause)
    return _add(k, r, key, general, args, in_step, call)


def _add(
    k: RecordingKernel,
    r: Recorder,
    key: tuple[Any, ...],
    general: specialization.GeneralKey | None,
    args: tuple[Any, ...],
    in_step: bool,
    call: str | None,
) -> State:
    """Infer the record's results, make it, and add the state behind it to the trie."""
    parent = r.state
    bound = {name: v for name, v in zip(k.schema_names, args, strict=True) if v is not ABSENT}
    if is_elsewhere(bound):
        raise NotRecorded(lambda: elsewhere(k.op, bound))
    results = _infer_checked(k, r, bound)
    if shares_elements(k.arguments, args):
        raise NotRecorded(lambda: record_each(k.again, k.arguments, args))
    if (made := first_state(r, str(k.op), bound, results[0] if k.returns_one else None)) is not None:
        raise NotRecorded(made.tensor)
    outs = tuple(o for o, ret in zip(results, k.op._schema.returns, strict=True) if not _is_alias(ret))
    flat = _flatten(outs)
    out_slots, written, slots = _new_slots(k, bound, flat, r.slots)
    numbers = _NumberCounter(parent.numbers)
    arguments = _record_arguments(k, key, bound, numbers, iter(range(parent.slots, r.slots)))
    if (node := current_node()) is not None:
        note_replayed(r, node)
    line = recorded_line()
    in_graph = is_differentiated(args) and may_require_grad(flat)
    if line is not None and in_graph:
        note_forward(line)
    choice = specialization.choose(r, parent, key, k.scalars, general, line)
    if choice.general is not None and k.scalars is not None:
        arguments = k.scalars.arguments(arguments, len(r.numbers))
        r.numbers.extend(choice.general.numbers)
        key = choice.general.key
    switches = ambient.switches(k.op, k.facts, bound)
    record = Record(
        op=k.op,
        arguments=arguments,
        outs=flat,
        out_slots=out_slots,
        written=written,
        admitted=admitted(r, parent),
        line=line,
        rng=numbers.next if k.facts.random else None,
        settings=ambient.settings(switches),
        in_backward=backward_id() != -1,
        in_step=in_step,
        in_graph=in_graph,
        call=call,
    )
    state = State(parent, record, outs[0] if k.returns_one else results, slots, len(r.buffers), len(r.numbers))
    if huge_numbers(bound):
        activation.engine().check_import(state)
    if r.mode == "fused":
        watch(state)
        note_idle(state)
    parent.add(ambient.keyed(key, switches), state)
    specialization.settle(r, parent, state, choice)
    return state


def _infer_checked(k: RecordingKernel, r: Recorder, bound: dict[str, Any]) -> Any:
    """Return the layouts of the op's results. Raises torch's errors for invalid arguments, and the device's."""
    for a, name in zip(k.arguments, k.schema_names, strict=True):
        if a.written:
            _require_tpu(k.op, name, bound[name])
    check_device(bound.get("device"))
    check_layout(bound.get("layout"), bound.get("memory_format"))
    for value in bound.values():
        _check_sizes(value)
    # The CPU looks at memory before it selects a kernel by dtype, and in pointwise ops before all else.
    at_first = is_pointwise(k.op)
    if at_first:
        check_writes(k.op, bound)
    results = infer(k.op, bound)
    if not at_first:
        check_writes(k.op, bound)
    check_platform(k.op, bound, results, r.platform)
    check_dtypes(k.op, bound, results)
    check_dims(k.op, bound, results)
    if type(r) is Recorder:  # else the program did not call it: a capture records it for other sizes
        warn(k.op, bound, results)
        warn_of_expanded(k.op, bound)
    return results


def _new_slots(
    k: RecordingKernel, bound: dict[str, Any], flat: tuple[Layout | None, ...], slots: int
) -> tuple[tuple[int, ...], dict[str, tuple[int, ...]], int]:
    """Return the slots of new results, the slots of written arguments' new values, and the number of slots
    afterwards."""
    out_slots = tuple(range(slots, slots + sum(o is not None for o in flat)))
    slots += len(out_slots)
    written: dict[str, tuple[int, ...]] = {}
    for a, name in zip(k.arguments, k.schema_names, strict=True):
        if a.written and bound[name] is not None:
            count = len(bound[name]) if a.kind == "tensors" else 1
            written[name] = tuple(range(slots, slots + count))
            slots += count
    return out_slots, written, slots


class _NumberCounter:
    """A counter of run-time numbers in the order in which the kernel appended them."""

    def __init__(self, start: int):
        self.next = start

    def take(self, value: Any) -> Number:
        self.next += 1
        if isinstance(value, torch.Tensor):
            return Number(self.next - 1, _python_type(value.dtype), value.dtype)
        return Number(self.next - 1, type(value))


def _python_type(dtype: torch.dtype) -> type:
    """Return the Python type of `item()` for a tensor of this dtype."""
    if dtype.is_complex:
        return complex
    return float if dtype.is_floating_point else bool if dtype is torch.bool else int


def _record_arguments(
    k: RecordingKernel, key: tuple[Any, ...], bound: dict[str, Any], numbers: _NumberCounter, admitted: Iterator[int]
) -> dict[str, Any]:
    keyed = [(a, name) for a, name in zip(k.arguments, k.schema_names, strict=True) if a.kind != "generator"]
    return {
        name: _argument(a, bound[name], token, numbers, admitted)
        for (a, name), token in zip(keyed, key[1:], strict=False)
        if name in bound
    }


def _argument(a: KernelArgument, value: Any, token: Any, numbers: _NumberCounter, admitted: Iterator[int]) -> Any:
    if value is None:
        return None
    if a.kind == "tensor":
        return _operand(value, token, numbers, admitted)
    if a.kind == "tensors":
        pairs = zip(value, token, strict=True)
        return [None if v is None else _operand(v, t, numbers, admitted) for v, t in pairs]
    if a.kind == "number":
        return numbers.take(value)
    if a.kind == "numbers":
        return [numbers.take(v) for v in value]
    return tuple(value) if isinstance(value, list) else value


def _operand(value: Any, token: Any, numbers: _NumberCounter, admitted: Iterator[int]) -> Operand | Number:
    """Return a tensor argument as the record has it.

    Its slot comes from its part of the key, or is the next one of `admitted`. The value's own slot may differ by now: a
    thread that shares an input gives it a slot of its own trace.
    """
    storage: Any = value.untyped_storage() if isinstance(value, torch.Tensor) else None
    stored = getattr(storage, "_value", None)
    if stored is None:
        return numbers.take(value)
    layout: Layout = stored.layout
    shape, stride, offset = tuple(value.shape), tuple(value.stride()), int(value.storage_offset())
    natural = (shape, stride, offset, value.dtype) == (layout.shape, layout.stride, 0, layout.dtype)
    # (base, shape, stride, offset, dtype) of a view
    base = token[0] if type(token) is tuple and len(token) == 5 else token
    slot = base if type(base) is int else next(admitted)
    return Operand(slot, None if natural else (shape, stride, offset, value.dtype))


def _is_alias(ret: Any) -> bool:
    return ret.alias_info is not None and ret.alias_info.is_write


def _flatten(outs: Any) -> tuple[Layout | None, ...]:
    flat: list[Layout | None] = []
    for o in outs:
        flat.extend(_flatten(o) if type(o) is tuple else [o])
    return tuple(flat)


def _require_tpu(op: OpOverload, name: str, value: Any) -> None:
    for tensor in value if isinstance(value, list | tuple) else [value]:
        if isinstance(tensor, torch.Tensor) and tensor.device.type != "tpu":
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, tpu:0 and "
                f"{tensor.device}! ('{name}' of {op} is written, so it has to be on tpu)"
            )


def _check_sizes(value: Any) -> None:
    """Check the sizes of tensors: a view can have any number of elements, and a program reads all of them."""
    for tensor in value if isinstance(value, list | tuple) else [value]:
        if isinstance(tensor, torch.Tensor):
            activation.engine().check_size(tensor.dtype, tuple(tensor.shape))
