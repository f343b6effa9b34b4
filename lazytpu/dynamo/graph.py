"""A captured graph as a callable: one record, and one edge of the trie."""

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
from lazytpu.frontend.recording.required_cuts import CutRequired, check_required_cuts
from lazytpu.frontend.tensors import recorder, value_of, wrap
from lazytpu.frontend.torch_private import HigherOrderOperator, empty_tensor, is_transformed, without_modes
from lazytpu.options import options
from lazytpu.trace.cuts import THREAD
from lazytpu.trace.recorder import PendingElsewhere, Recorder
from lazytpu.trace.trie import State
from lazytpu.trace.value import EMPTY, Value, resident


class CompiledGraph:
    """Records a graph of ATen ops as one edge of the trie when it is called.

    The edge's key is the graph's name, a digest of its code, with a token per argument. Graphs with the same code share
    their edges, as equal layers do. What such an edge expands to is found out at a miss, by `capture`, for the layouts
    of the arguments. A graph that cannot be one record runs op by op, and `breaks` says why.

    `kind` is "forward", "backward" or "inference"; `sizes` are those that vary, and `tuned` says whether passes are
    chosen for its programs. Follows AOTAutograd's boxed convention: takes one list of arguments and empties it.
    """

    def __init__(self, graph: fx.GraphModule, kind: str, sizes: VaryingSizes | None = None, tuned: bool = False):
        self._boxed_call = True  # of the instance, which is what torch's wrappers copy
        self.graph = graph
        self.kind = kind
        self.sizes = sizes
        self.tuned = tuned
        self.name = name_of(graph, f"{kind}.tuned" if tuned else kind)
        self.constants: dict[str, torch.Tensor] = {}  # tensors of its nodes that are arguments, too
        self.states = random_states(graph)
        self.one_by_one = False
        self.counts = has_counts(graph)
        self.captures = Captures.of(self.name)
        self.asks = has_sizes(graph)  # whether expressions are asked for: those of one capture are those of all

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
                except BaseException as error:  # noqa: BLE001  (raised below, without the lock)
                    r.rollback()
                    failure = error
                else:
                    break
            try:
                self._failed(r, failure, inputs, drawn)
            finally:
                del failure  # its traceback holds this frame, which holds the user's tensors (R4)
        for index, _ in plan.written:
            if not inputs[index].is_inference():
                increment_version(inputs[index])
        if r.eager:
            run_now(r)
        return _results(plan, inputs, values, drawn)

    def _record(self, r: Recorder, args: list[Any], drawn: list[tuple[int, int]], values: list[Value]) -> Plan:
        """Take the edge of the graph with these arguments. Offsets drawn are added to `drawn`, new values to
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
        check_required_cuts(r.state, key, r.mode == "fused")
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
            r.rollback()  # nothing is recorded, so nothing has to be admitted
            return plan_of(captured)[0]
        parent = r.state
        _admit(r, captured.uploads.values())
        _append_numbers(r, captured, args, drawn)
        state = splice(r, key, args, captured, self.kind == "forward", self.tuned)
        parent.expected = state
        _enter(r, state, state.outs, args, values)
        return state.outs

    def _captured(self, args: list[Any], symbolic: bool) -> Capture:
        backward = self.kind == "backward"
        if not self.counts or options.buckets == "off" or torch.are_deterministic_algorithms_enabled():
            return capture(self.graph, args, self.constants, self.states, backward, symbolic=symbolic)

        def capturing(part: fx.GraphModule, inputs: list[Any], counts: Counts, symbolic: bool) -> Capture:
            return capture(part, inputs, {}, (), backward, counts, symbolic)

        graph = counted(self.graph, args, capturing)
        return capture(graph, args, self.constants, self.states, backward)

    def _failed(self, r: Recorder, error: BaseException, args: list[Any], drawn: list[tuple[int, int]]) -> None:
        """Prepare another attempt after an error, or raise it. The recorder was rolled back and is not locked."""
        for _, offset in reversed(drawn):
            undraw(None, offset)
        if isinstance(error, PendingElsewhere):
            owner = error.value.recorder
            assert owner is not None
            owner.cut(THREAD, call_site())
        elif isinstance(error, CutRequired):
            r.cut(error.cause, call_site())
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
    """The key of the edge; the loop is that of `operands` in `recording.keys`."""
    e = r.epoch
    tokens: list[Any] = [name]
    for t in args:
        try:
            v = t.untyped_storage()._value
        except (AttributeError, NotImplementedError):  # no tensor of the device, or a sparse one
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
    """What a capture depends on: the layouts of the arguments, which of them share storages, and torch's switches."""
    parts: list[Any] = [r.platform, *(switch.read() for switch in ambient.SWITCHES)]
    first: dict[int, int] = {}
    for index, arg in enumerate(args):
        if index in states:
            parts.append("state")
        elif is_number(arg):
            parts.append(("cpu", arg.dtype))
        elif isinstance(arg, torch.Tensor):
            if arg.is_conj() or arg.is_neg():
                raise NotOneRecord("an input is a tensor that is conjugated or negated lazily")
            value = value_of(arg)
            kind = value.layout.empty_key if value.buffer is EMPTY else value.layout.key
            parts.append((first.setdefault(id(value), index), kind, view_of(arg)))
        else:
            parts.append(exact(arg))
    return tuple(parts)


def _admit(r: Recorder, uploads: Iterable[Value]) -> None:
    """Admit a graph's own constants. Whether the trace has them already, its state says, so they are in no key."""
    for value in uploads:
        if value.epoch != r.epoch:
            r.admit(value)


def _append_numbers(r: Recorder, plan: Plan | Capture, args: Sequence[Any], drawn: list[tuple[int, int]]) -> None:
    """The graph's run-time numbers; what the generator gives is added to `drawn`."""
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
    """Go on to `state`: make the graph's new values, and write those of its arguments. Raises torch's error for a write
    to a tensor of inference mode outside of it."""
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
    """In place of the reference to a value inside of a graph: no tensor ever holds it."""


def _results(plan: Plan, args: Sequence[Any], values: Sequence[Value], drawn: Sequence[tuple[int, int]]) -> list[Any]:
    """What the graph returns."""
    results: list[Any] = []
    bases: dict[Any, torch.Tensor] = {}  # results that share a storage
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
    """A view that counts in-place writes together with its base, as a view that torch makes."""
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
    """The graph's name: equal for graphs of the same kind with the same code, and for those alone."""
    text = hashlib.sha256(kind.encode())
    for name, module in graph.named_modules():
        if isinstance(module, fx.GraphModule):
            text.update(f"{name}\n{module.code}\n".encode())
            text.update(_constants(module))
            text.update("\n".join(_target(node) for node in module.graph.nodes).encode())
    return sys.intern(f"graph.{kind}.{text.hexdigest()[:16]}")


def _constants(graph: fx.GraphModule) -> bytes:
    """The tensors of the host among its nodes: what they hold is part of what the graph computes."""
    named = [(n.name, attrgetter(str(n.target))(graph)) for n in graph.graph.nodes if n.op == "get_attr"]
    constants = [(name, t) for name, t in named if isinstance(t, torch.Tensor) and t.device.type == "cpu"]
    return b"".join([f"{name} {t.dtype} {tuple(t.shape)} ".encode() + _bytes(t) for name, t in constants])


def _bytes(tensor: torch.Tensor) -> bytes:
    with without_modes():  # of fake tensors
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return plain.view(-1).view(torch.uint8).numpy().tobytes()


def _target(node: fx.Node) -> str:
    """What a node calls; a function of Python by its identity, since its name may be another's, too."""
    target: Any = node.target
    if node.op != "call_function" or isinstance(target, OpOverload | HigherOrderOperator):
        return str(target)
    return str(target) if getattr(operator, target.__name__, None) is target else f"{target} {id(target)}"
