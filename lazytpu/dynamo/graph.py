"""A captured graph as a callable, which records one edge of the trie."""

from __future__ import annotations

import hashlib
import operator
import sys
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any
from weakref import ref

import torch
from torch import fx
from torch._ops import OpOverload
from torch.autograd.graph import increment_version

from lazytpu.dynamo.breaks import note_one_by_one
from lazytpu.dynamo.capture import capture, is_number
from lazytpu.dynamo.captures import Captures
from lazytpu.dynamo.counted import counted, has_counts
from lazytpu.dynamo.expressions import has_sizes
from lazytpu.dynamo.interpret import GraphRun, random_states
from lazytpu.dynamo.placeholders import NewConstants, NotOneRecord
from lazytpu.dynamo.results import Capture, View, view_of, viewed
from lazytpu.dynamo.splice import Plan, plan_of, splice
from lazytpu.dynamo.varying import VaryingSizes
from lazytpu.frontend.device.generators import default_generator, draw, packed, undraw, unpacked
from lazytpu.frontend.lines import call_site
from lazytpu.frontend.ops.counts import Counts
from lazytpu.frontend.recording import ambient
from lazytpu.frontend.recording.eager import run_now
from lazytpu.frontend.recording.keys import exact
from lazytpu.frontend.recording.not_recorded import NotRecorded, cut_first
from lazytpu.frontend.recording.required_cuts import required_cut
from lazytpu.frontend.tensors import recorder, value_of, wrap
from lazytpu.frontend.torch_private import HigherOrderOperator, empty_tensor, is_transformed, without_modes
from lazytpu.options import options
from lazytpu.trace.cuts import THREAD
from lazytpu.trace.recorder import PendingElsewhere, Recorder
from lazytpu.trace.trie import State
from lazytpu.trace.value import EMPTY, Value, resident


class CompiledGraph:
    """A callable that records a graph of ATen ops as one edge of the trie.

    The edge's key is the graph's name, a digest of its code, with a token per argument. So graphs with the same code,
    such as equal layers, share their edges. At a miss, `capture` expands the graph for the layouts of the arguments. A
    graph that cannot be one record runs op by op, and `breaks` says why.

    `kind` is "forward", "backward" or "inference". `sizes` are the sizes that vary. `tuned` says whether passes are
    selected for its programs. Follows AOTAutograd's boxed convention: it takes one list of arguments, and empties it.
    """

    def __init__(self, graph: fx.GraphModule, kind: str, sizes: VaryingSizes | None = None, tuned: bool = False):
        self._boxed_call = True  # on the instance, since torch's wrappers copy its attributes
        self.graph = graph
        self.kind = kind
        self.sizes = sizes
        self.tuned = tuned
        self.name = name_of(graph, f"{kind}.tuned" if tuned else kind)
        self.constants: dict[str, torch.Tensor] = {}  # tensors of its nodes that are passed as arguments, too
        self.states = random_states(graph)
        self.one_by_one = False
        self.counts = has_counts(graph)
        self.captures = Captures.of(self.name)
        # Whether to derive expressions. All captures share the expressions of the first one.
        self.asks = has_sizes(graph)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        inputs = [*args, *self.constants.values()]
        args.clear()
        while True:
            r = recorder()
            if self.one_by_one or r.mode == "debug" or is_transformed():
                return self._op_by_op(inputs)
            drawn: list[tuple[int, int]] = []
            values: list[Value] = []
            with r.lock:
                try:
                    plan = self._record(r, inputs, drawn, values)
                except BaseException as error:  # noqa: BLE001 (re-raised below, without the lock)
                    r.rollback()
                    failure = error
                else:
                    break
            try:
                self._failed(r, failure, inputs, drawn)
            finally:
                del failure  # its traceback refers to this frame, which refers to the user's tensors (R4)
        for index, _ in plan.written:
            if not inputs[index].is_inference():
                increment_version(inputs[index])
        if r.eager:
            run_now(r)
        return _results(plan, inputs, values, drawn)

    def _record(self, r: Recorder, args: list[Any], drawn: list[tuple[int, int]], values: list[Value]) -> Plan:
        """Take the graph's edge for these arguments. Appends the drawn offsets to `drawn`, and the new values to
        `values`."""
        key = _key(self.name, r, args, self.states)
        parent = r.state
        state = parent.expected
        if state.key != key:
            state = parent.next.get(key)
            if state is None:
                return self._miss(r, key, args, drawn, values)
            parent.expected = state
        plan = state.outs  # pyright: ignore[reportAttributeAccessIssue]
        _admit(r, plan.uploads)
        _append_numbers(r, plan, args, drawn)
        _enter(r, state, plan, args, values)  # pyright: ignore[reportArgumentType]
        return plan

    def _miss(
        self, r: Recorder, key: tuple[Any, ...], args: list[Any], drawn: list[tuple[int, int]], values: list[Value]
    ) -> Plan:
        if (cause := required_cut(r.state, key, r.mode == "fused")) is not None:
            raise cut_first(r, cause)
        if self.sizes is not None:
            self.sizes.note(args)
        structure = _structure(r, args, self.states)
        captured = self.captures.get(structure)
        symbolic = self.asks and not (r.eager or self.counts or options.buckets == "off")
        if captured is None or (symbolic and captured.expressed is None):
            captured = self._captured(args, symbolic)
            self.asks = self.asks and not symbolic
            self.captures.keep(structure, captured)
        if not captured.records:
            r.rollback()  # nothing is recorded, so nothing is admitted
            return plan_of(captured)[0]
        parent = r.state
        _admit(r, captured.uploads.values())
        _append_numbers(r, captured, args, drawn)
        state = splice(r, key, args, captured, self.kind == "forward", self.tuned)
        parent.expected = state
        _enter(r, state, state.outs, args, values)
        return state.outs

    def _captured(self, args: list[Any], symbolic: bool) -> Capture:
        """Capture the graph; one with data-dependent sizes is first replaced by a graph that counts on the device."""
        backward = self.kind == "backward"
        if not self.counts or options.buckets == "off" or torch.are_deterministic_algorithms_enabled():
            return capture(self.graph, args, self.constants, self.states, backward, symbolic=symbolic)

        def capturing(part: fx.GraphModule, inputs: list[Any], counts: Counts, symbolic: bool) -> Capture:
            return capture(part, inputs, {}, (), backward, counts, symbolic)

        graph = counted(self.graph, args, capturing)
        return capture(graph, args, self.constants, self.states, backward)

    def _failed(self, r: Recorder, error: BaseException, args: list[Any], drawn: list[tuple[int, int]]) -> None:
        """Prepare another attempt after an error, or re-raise it. The recorder was rolled back, and is not locked."""
        for _, offset in reversed(drawn):
            undraw(None, offset)
        if isinstance(error, PendingElsewhere):
            owner = error.value.recorder
            assert owner is not None
            owner.cut(THREAD, call_site())
        elif isinstance(error, NotRecorded):
            error.instead()
        elif isinstance(error, NewConstants):
            self.constants.update(error.constants)
            args.extend(error.constants.values())
        elif isinstance(error, NotOneRecord):
            self.one_by_one = True
            note_one_by_one(str(error), call_site())
        else:
            raise error

    def _op_by_op(self, args: list[Any]) -> Sequence[Any]:
        count = len(args) - len(self.constants)
        results = GraphRun(self.graph, self.kind == "backward").run(*args[:count])
        return results if isinstance(results, tuple | list) else [results]


def _key(name: str, r: Recorder, args: Sequence[Any], states: frozenset[int]) -> tuple[Any, ...]:
    """Return the edge's key. The loop is the same as in `operands` of `recording.keys`."""
    e = r.epoch
    tokens: list[Any] = [name]
    for t in args:
        try:
            v = t.untyped_storage()._value
        except (AttributeError, NotImplementedError):  # not a device tensor, or a sparse one
            tokens.append("state" if len(tokens) - 1 in states else _static(t))
            continue
        k = v.slot if v.epoch == e else r.admit(v)
        o = v.layout
        if t.shape == o.shape and t.stride() == o.stride and not t.storage_offset() and t.dtype is o.dtype:
            tokens.append(k)
        else:
            tokens.append((k, t.shape, t.stride(), t.storage_offset(), t.dtype))
    return tuple(tokens)


def _static(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | complex):
        return exact(value)
    if isinstance(value, torch.Tensor):
        if is_number(value):
            return ("cpu", value.dtype)
        raise NotOneRecord(f"an input is a {value.layout} tensor on {value.device}")
    raise NotOneRecord(f"an input is a {type(value).__name__}")


def _structure(r: Recorder, args: Sequence[Any], states: frozenset[int]) -> tuple[Any, ...]:
    """Return the key of a capture: the arguments' layouts, which of them share storages, and torch's switches."""
    tokens: list[Any] = [r.platform, *(switch.read() for switch in ambient.SWITCHES)]
    first: dict[int, int] = {}
    for index, arg in enumerate(args):
        if index in states:
            tokens.append("state")
        elif is_number(arg):
            tokens.append(("cpu", arg.dtype))
        elif isinstance(arg, torch.Tensor):
            if arg.is_conj() or arg.is_neg():
                raise NotOneRecord("an input is a tensor that is conjugated or negated lazily")
            value = value_of(arg)
            kind = value.layout.empty_key if value.buffer is EMPTY else value.layout.key
            tokens.append((first.setdefault(id(value), index), kind, view_of(arg)))
        else:
            tokens.append(exact(arg))
    return tuple(tokens)


def _admit(r: Recorder, uploads: Iterable[Value]) -> None:
    """Admit a graph's own constants. They are in no key, because the state determines whether the trace has them."""
    for value in uploads:
        if value.epoch != r.epoch:
            r.admit(value)


def _append_numbers(r: Recorder, plan: Plan | Capture, args: Sequence[Any], drawn: list[tuple[int, int]]) -> None:
    """Append the graph's run-time numbers; the generator's draws are appended to `drawn`."""
    start = len(r.numbers)
    r.numbers.extend(plan.numbers)
    for index, argument in plan.given:
        r.numbers[start + index] = args[argument].item()
    for index, source in plan.draws:
        if source is None:
            seed, offset = draw()
            drawn.append((seed, offset))
        else:
            argument, later = source
            seed, offset = unpacked(args[argument])
            offset += later
        r.numbers[start + index : start + index + 2] = seed, offset


def _enter(r: Recorder, state: State, plan: Plan, args: Sequence[Any], values: list[Value]) -> None:
    """Advance to `state`: create the graph's new values, and write the values of its arguments.

    Raises torch's error for a write to an inference tensor outside inference mode.
    """
    for index, _ in (*plan.written, *plan.moved):
        if args[index].is_inference() and not torch.is_inference_mode_enabled():
            raise RuntimeError(
                "Inplace update to inference tensor outside InferenceMode is not allowed: "
                "make a clone to get a normal tensor before the update"
            )
    base, e = r.slots, r.epoch
    r.state = state
    r.slots = base + plan.slots
    references: list[Any] = [_unheld] * plan.slots
    for slot, layout in plan.values:
        value = Value(layout, e, base + slot, None, r)
        references[slot] = ref(value)
        values.append(value)
    r.values.extend(references)
    moved = [(index, args[source].untyped_storage()._value) for index, source in plan.moved]
    for index, number in plan.written:
        r.assign(args[index].untyped_storage(), values[number])
    for index, value in moved:
        r.assign(args[index].untyped_storage(), value)


def _unheld() -> None:
    """A dead reference, for values inside a graph, which no tensor ever holds."""


def _results(plan: Plan, args: Sequence[Any], values: Sequence[Value], drawn: Sequence[tuple[int, int]]) -> list[Any]:
    """Return the results of the graph."""
    results: list[Any] = []
    bases: dict[Any, torch.Tensor] = {}  # tensors of storages that several results share
    for kind, source, view, shared in plan.results:
        if kind == "whole":
            value = values[source]
            tensor = empty_tensor(view, value.layout.dtype)
            tensor.untyped_storage()._value = value  # pyright: ignore[reportAttributeAccessIssue]
            results.append(tensor)
            continue
        if kind == "static":
            results.append(source)
            continue
        if kind == "state":
            results.append(packed(*drawn[source]) if source < len(drawn) else default_generator.get_state())
            continue
        if kind == "argument":
            base = args[source]
            if view is None:
                results.append(base)
                continue
        else:
            base = bases.get((kind, source))
            if base is None:
                base = bases[kind, source] = wrap(_value(kind, source, args, values))
        results.append(base if view is None else _together(base, view) if shared else viewed(base, view))
    return results


def _together(base: torch.Tensor, view: View) -> torch.Tensor:
    """Return a view that shares its version counter with its base, like torch's own views."""
    size, stride, offset, dtype = view
    with torch.no_grad():
        return viewed(base, view) if dtype is not base.dtype else base.as_strided(size, stride, offset)


def _value(kind: str, source: Any, args: Sequence[Any], values: Sequence[Value]) -> Value:
    if kind == "value":
        return values[source]
    if kind == "shared":
        return value_of(args[source])
    return resident(source[1], EMPTY)


def name_of(graph: fx.GraphModule, kind: str) -> str:
    """Return the graph's name: equal for graphs of the same kind with the same code, and only for these."""
    text = hashlib.sha256(kind.encode())
    for name, module in graph.named_modules():
        if isinstance(module, fx.GraphModule):
            text.update(f"{name}\n{module.code}\n".encode())
            text.update(_constants(module))
            text.update("\n".join(_target(node) for node in module.graph.nodes).encode())
    return sys.intern(f"graph.{kind}.{text.hexdigest()[:16]}")


def _constants(graph: fx.GraphModule) -> bytes:
    """Return the CPU tensors among the graph's nodes as bytes: their contents are part of the computation."""
    named = [(n.name, attrgetter(str(n.target))(graph)) for n in graph.graph.nodes if n.op == "get_attr"]
    constants = [(name, t) for name, t in named if isinstance(t, torch.Tensor) and t.device.type == "cpu"]
    return b"".join([f"{name} {t.dtype} {tuple(t.shape)} ".encode() + _bytes(t) for name, t in constants])


def _bytes(tensor: torch.Tensor) -> bytes:
    with without_modes():  # without fake tensors
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return plain.view(-1).view(torch.uint8).numpy().tobytes()


def _target(node: fx.Node) -> str:
    """Return the target of a node as text. A Python function includes its identity, since names are not unique."""
    target: Any = node.target
    if node.op != "call_function" or isinstance(target, OpOverload | HigherOrderOperator):
        return str(target)
    return str(target) if getattr(operator, target.__name__, None) is target else f"{target} {id(target)}"
