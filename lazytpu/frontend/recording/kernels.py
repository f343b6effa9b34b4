"""Recording kernels: what they share, what happens on a miss, and how one is made for an op."""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.graph import increment_version

import lazytpu.frontend.inference.formats
import lazytpu.frontend.inference.fourier
import lazytpu.frontend.inference.normalization
import lazytpu.frontend.inference.numbers
import lazytpu.frontend.inference.unpool  # noqa: F401 (their meta functions register)
from lazytpu.frontend import ports
from lazytpu.frontend.inference.argument_checks import checked
from lazytpu.frontend.inference.dtype_support import check_dtypes, huge_numbers
from lazytpu.frontend.inference.infer import infer
from lazytpu.frontend.inference.platforms import check_platform
from lazytpu.frontend.inference.size_support import check_dims
from lazytpu.frontend.ops.creation import check_device
from lazytpu.frontend.ops.factories import factory, factory_kernel
from lazytpu.frontend.recording import ambient, codegen
from lazytpu.frontend.recording import specialization as promotion
from lazytpu.frontend.recording.eager import run_now
from lazytpu.frontend.recording.lines import call_site, note_forward, user_line
from lazytpu.frontend.recording.one_by_one import OneByOne, check_lists, record_each
from lazytpu.frontend.recording.out import out_kernel, out_names
from lazytpu.frontend.recording.required_cuts import TraceEnds, check_known_ends, note_idle, note_start
from lazytpu.frontend.recording.step_starts import belongs_to_step, is_differentiated
from lazytpu.frontend.recording.tensors import STASH, recorder, wrap
from lazytpu.frontend.recording.writes import check_writes
from lazytpu.frontend.storage import unwritten
from lazytpu.frontend.torch_private import META, as_strided, backward_id, empty_tensor, has_kernel, thread_stash
from lazytpu.trace.cuts import THREAD
from lazytpu.trace.loops import watch
from lazytpu.trace.recorder import PendingElsewhere, Recorder
from lazytpu.trace.trie import Number, Operand, Record, State
from lazytpu.trace.value import EMPTY, Layout, Value


class Absent:
    """An argument the caller left at its default: static, whatever the argument is otherwise."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


@dataclass
class Kernel:
    """One op's recording kernel, the Python it was generated as, and what its miss path needs."""

    op: OpOverload
    facts: ports.OpFacts
    source: str
    arguments: list[codegen.Argument]
    schema_names: list[str]
    returns_one: bool
    promotable: promotion.Promotable | None
    call: Callable[..., Any] = field(default=lambda: None)


_made: dict[OpOverload, Kernel] = {}


def kernel(op: OpOverload) -> Kernel:
    """The kernel of `op`, generated at its first use. Raises NotImplementedError when nothing expresses the op."""
    found = _made.get(op)
    if found is None:
        facts = ports.engine().facts(op)
        returns = op._schema.returns
        one = len(returns) == 1 and "List[" not in str(returns[0].type)
        fresh = not (returns and returns[0].alias_info is not None and returns[0].alias_info.is_write)
        arguments = codegen.arguments(op, facts)
        text, file = codegen.source(op, facts), f"<kernel of {op}>"
        names = [a.name for a in op._schema.arguments]
        keyed = [name for a, name in zip(arguments, names, strict=True) if a.kind != "generator"]
        promotable = promotion.Promotable.of(str(op), keyed, facts.promotable)
        found = Kernel(op, facts, text, arguments, names, one and fresh, promotable)
        scope = {**_NAMESPACE, "KERNEL": found, "NAME": str(op), "DEFAULTS": _defaults(op)}
        exec(compile(text, file, "exec"), scope)
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # tracebacks show it
        found.call = scope[codegen.function_name(op)]
        _made[op] = found
    return found


_callables: dict[OpOverload, Callable[..., Any]] = {}


def callable_of(op: OpOverload) -> Callable[..., Any]:
    """What runs for `op`: its recording kernel, or for an out= overload its functional form and a copy."""
    found = _callables.get(op)
    if found is None:
        found = _callables[op] = _writing(op) if out_names(op) else unwritten.filling(op, checked(op, kernel(op).call))
    return found


def _writing(op: OpOverload) -> Callable[..., Any]:
    computed = ports.engine().functional(op)
    if computed is not None:
        return out_kernel(op, _terminating(computed))
    make = factory(op)
    return kernel(op).call if make is None else factory_kernel(op, make)


def _terminating(functional: OpOverload) -> Callable[..., Any]:
    """`functional`, recorded where torch's composite kernel may call the out= overload (huber_loss_backward does)."""
    name = functional.name()
    composite = has_kernel(name, "CompositeExplicitAutograd") and not has_kernel(name, "PrivateUse1")
    return callable_of(functional) if composite else functional


def _defaults(op: OpOverload) -> dict[str, Any]:
    return {codegen.safe(a.name): a.default_value for a in op._schema.arguments if a.has_default_value()}


def exact(value: Any) -> Any:
    """A static number's part of the key: its type counts, NaN equals itself, and -0.0 differs from 0.0 (R2)."""
    if value is None or value is ABSENT:
        return value
    plain = value and value == value and type(value) is not complex  # a complex number may have a part that is -0.0
    return (type(value), value if plain else repr(value))


def foreign(r: Recorder, value: Any) -> Any:
    """The key's part of a tensor argument that is not on tpu: None, a number, or a 0-d CPU tensor's number (R2)."""
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        r.numbers.append(value)
        return type(value)
    if value.device.type == "cpu" and value.dim() == 0:
        r.numbers.append(value.item())
        return ("cpu", value.dtype)
    if value.device.type == "tpu":
        raise RuntimeError("a tpu tensor without a value: its storage was made behind lazytpu's back")
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, tpu:0 and {value.device}!"
    )


def operands(r: Recorder, tensors: Any) -> Any:
    """The key's part of a list of tensors; the loop body is the one of a single operand."""
    if tensors is None:
        return None
    e, tokens = r.epoch, []
    for t in tensors:
        try:
            v = t.untyped_storage()._value
        except AttributeError:
            tokens.append(foreign(r, t))
            continue
        k = v.slot if v.epoch == e else r.admit(v)
        o = v.layout
        if t.shape == o.shape and t.stride() == o.stride and not t.storage_offset() and t.dtype is o.dtype:
            tokens.append(k)
        else:
            tokens.append((k, t.shape, t.stride(), t.storage_offset(), t.dtype))
    return tuple(tokens)


def produce_all(r: Recorder, outs: Any) -> Any:
    """New values for the results of an op that has several; None stays."""
    return [o if o is None else produce_all(r, o) if type(o) is tuple else r.produce(o) for o in outs]


def wrap_one(value: Value | None) -> torch.Tensor | None:
    """The tensor of one result among several."""
    return None if value is None else wrap(value)


def wrap_all(values: list[Value | None]) -> list[Any]:
    """The tensors of a list result."""
    return [wrap_one(v) for v in values]


def failed(k: Kernel, r: Recorder, error: BaseException, args: tuple[Any, ...]) -> Any:
    """Raise the error of a record that did not succeed and was rolled back, without the recorder's lock. A trace that
    ends, or an operand pending elsewhere, is cut and the op retried; an op on lists may be recorded one by one."""
    if isinstance(error, PendingElsewhere):
        owner = error.value.recorder
        assert owner is not None
        owner.cut(THREAD, call_site())
        if error.value.buffer is None:
            raise RuntimeError(f"{k.op}: an operand was never computed ({error.value})")
    elif isinstance(error, TraceEnds):
        r.cut(error.cause, call_site())
    elif isinstance(error, OneByOne):
        return record_each(partial(_again, k), k.arguments, args)
    else:
        try:
            raise error
        finally:
            del error, args  # its traceback holds this frame, which would hold it, and the user's tensors (R4)
    return _again(k, args)


def _again(k: Kernel, args: Sequence[Any]) -> Any:
    positional = [v for a, v in zip(k.arguments, args, strict=True) if not a.keyword]
    keywords = {a.name: v for a, v in zip(k.arguments, args, strict=True) if a.keyword and v is not ABSENT}
    while positional and positional[-1] is ABSENT:
        positional.pop()
    return k.call(*positional, **keywords)


def miss(k: Kernel, r: Recorder, key: tuple[Any, ...], args: tuple[Any, ...]) -> State:
    """A record this state has not seen: check it, infer its results, and add the state to the trie."""
    parent = r.state
    wide = None if k.promotable is None else k.promotable.widen(key)
    if wide is not None:
        seen = parent.next.get(wide.key)
        if seen is not None:
            r.numbers.extend(wide.numbers)
            return seen
    fused = r.mode == "fused"
    check_known_ends(parent, key, fused)
    in_step = parent.in_step or belongs_to_step(args)
    if fused and in_step and not parent.in_step:
        note_start(parent, key)
    bound = {name: v for name, v in zip(k.schema_names, args, strict=True) if v is not ABSENT}
    for a, name in zip(k.arguments, k.schema_names, strict=True):
        if a.written:
            _require_tpu(k.op, name, bound[name])
    check_device(bound.get("device"))
    for value in args:
        _check_sizes(value)
    results = infer(k.op, bound)
    check_platform(k.op, bound, results, r.platform)
    check_dtypes(k.op, bound, results)
    check_dims(k.op, bound, results)
    check_writes(k.op, bound)
    check_lists(k.arguments, args)
    outs = tuple(o for o, ret in zip(results, k.op._schema.returns, strict=True) if not _is_alias(ret))
    slots = r.slots
    flat = _flatten(outs)
    out_slots = tuple(range(slots, slots + sum(o is not None for o in flat)))
    slots += len(out_slots)
    written: dict[str, tuple[int, ...]] = {}
    for a, name in zip(k.arguments, k.schema_names, strict=True):
        if a.written and bound[name] is not None:
            count = len(bound[name]) if a.kind == "tensors" else 1
            written[name] = tuple(range(slots, slots + count))
            slots += count
    numbers, admitted = _Numbers(parent.numbers), iter(range(parent.slots, r.slots))
    keyed = [(a, name) for a, name in zip(k.arguments, k.schema_names, strict=True) if a.kind != "generator"]
    arguments = {
        name: _argument(a, bound[name], token, numbers, admitted)
        for (a, name), token in zip(keyed, key[1:], strict=False)
        if name in bound
    }
    line = user_line()
    in_graph = is_differentiated(args)
    if line is not None and in_graph:
        note_forward(line)
    choice = promotion.choose(r, parent, key, k.promotable, wide, line)
    if choice.wide is not None and k.promotable is not None:
        arguments = k.promotable.arguments(arguments, len(r.numbers))
        r.numbers.extend(choice.wide.numbers)
        key = choice.wide.key
    needed = ambient.switches(k.op, k.facts, bound)
    record = Record(
        op=k.op,
        arguments=arguments,
        outs=flat,
        out_slots=out_slots,
        written=written,
        admitted=tuple(_admitted(r, slot) for slot in range(parent.slots, r.slots)),
        line=line,
        rng=numbers.next if k.facts.random else None,
        settings=ambient.settings(needed),
        in_backward=backward_id() != -1,
        in_step=in_step,
        in_graph=in_graph,
    )
    shape = outs[0] if k.returns_one else results
    state = State(parent, record, shape, slots, len(r.buffers), len(r.numbers))
    if huge_numbers(bound):
        ports.engine().check_import(state)
    if fused:
        watch(state)
        note_idle(state)
    parent.add(ambient.keyed(key, needed), state)
    promotion.settle(r, parent, state, choice)
    return state


class _Numbers:
    """Counts run-time numbers in the order in which the kernel appended them."""

    def __init__(self, start: int):
        self.next = start

    def take(self, value: Any) -> Number:
        self.next += 1
        if isinstance(value, torch.Tensor):
            return Number(self.next - 1, type(value.item()), value.dtype)
        return Number(self.next - 1, type(value))


def _argument(a: codegen.Argument, value: Any, token: Any, numbers: _Numbers, admitted: Iterator[int]) -> Any:
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


def _operand(value: Any, token: Any, numbers: _Numbers, admitted: Iterator[int]) -> Operand | Number:
    """What a tensor argument is in the record. Its slot is taken from its part of the key, or is the next of those
    `admitted`, and not from the value: another thread that shares an input may have given that a slot of its own."""
    storage: Any = value.untyped_storage() if isinstance(value, torch.Tensor) else None
    held = getattr(storage, "_value", None)
    if held is None:
        return numbers.take(value)
    kind: Layout = held.layout
    shape, stride, offset = tuple(value.shape), tuple(value.stride()), int(value.storage_offset())
    natural = (shape, stride, offset, value.dtype) == (kind.shape, kind.stride, 0, kind.dtype)
    base = token[0] if type(token) is tuple and len(token) == 5 else token  # (base, and the view of it)
    slot = base if type(base) is int else next(admitted)
    return Operand(slot, None if natural else (shape, stride, offset, value.dtype))


def _admitted(r: Recorder, slot: int) -> tuple[int, Layout, bool]:
    value = r.values[slot]()
    assert value is not None
    return slot, value.layout, value.buffer is EMPTY


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
    """A view can have any number of elements, and a program reads all of them."""
    for tensor in value if isinstance(value, list | tuple) else [value]:
        if isinstance(tensor, torch.Tensor):
            ports.engine().check_size(tensor.dtype, tuple(tensor.shape))


def _draw(generator: torch.Generator | None) -> tuple[int, int]:
    from lazytpu.frontend.device.generators import draw

    return draw(generator)


def _undraw(generator: torch.Generator | None, offset: int) -> None:
    from lazytpu.frontend.device.generators import undraw

    undraw(generator, offset)


_NAMESPACE: dict[str, Any] = {
    "ABSENT": ABSENT,
    "META": META,
    "STASH": STASH,
    "Value": Value,
    "as_strided": as_strided,
    "draw": _draw,
    "empty_tensor": empty_tensor,
    "exact": exact,
    "failed": failed,
    "foreign": foreign,
    "miss": miss,
    "operands": operands,
    "produce_all": produce_all,
    "recorder": recorder,
    "ref": weakref.ref,
    "run_now": run_now,
    "thread_stash": thread_stash,
    "undraw": _undraw,
    "wrote": increment_version,
    "wrap_all": wrap_all,
    "wrap_one": wrap_one,
}
