"""What the ops of a captured graph are as records: the graph runs once on placeholders, and nothing is computed.

The ops go through the same kernels as eager code, into a recorder of their own. So views, writes, random numbers,
decompositions and checks are those of eager code, and the result is an ordinary trace. A graph whose Python needs a
value, or computes on another device, is not one record: `NotOneRecord`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeGuard

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from lazytpu.dynamo.interpret import GraphRun
from lazytpu.frontend import activation
from lazytpu.frontend import torch_private as private
from lazytpu.frontend.device.generators import drawing_nothing
from lazytpu.frontend.recording.recomputing import recomputing
from lazytpu.frontend.recording.tensors import STASH, is_natural, recorder, value_of, wrap
from lazytpu.frontend.torch_private import pytree
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import Record, State
from lazytpu.trace.value import EMPTY, Layout, Value, resident

View = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]


_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


_READS = "it reads a value of the device"


class NotOneRecord(Exception):
    """The graph cannot be one record, for the reason given; its ops are recorded one by one."""


class NewConstants(Exception):
    """The graph has tensors of the device as attributes: they become inputs, since they may be written."""

    def __init__(self, constants: dict[str, torch.Tensor]):
        super().__init__("constants of a graph")
        self.constants = constants


class Placeholder:
    """In place of the device memory of an input."""

    __slots__ = ("error", "host", "pins")

    def __init__(self) -> None:
        self.pins = 0
        self.error = self.host = None

    def __getattr__(self, name: str) -> NoReturn:
        raise NotOneRecord(_READS)


class CaptureRecorder(Recorder):
    """Records a graph. Nothing in it can be cut, because nothing runs. `uploads` are the values on the device that are
    no arguments, and `given` maps the index of a number to the argument that it is."""

    __slots__ = ("given", "uploads")

    def __init__(self, outer: Recorder):
        root = State(None, None, None, 0, 0, 0)
        super().__init__(root, _refuse, outer.plan_of)
        self.own_mode = "lazy"
        self._set_mode("lazy")  # only what the size limit requires cuts there
        self.platform = outer.platform
        self.uploads: list[Value] = []
        self.given: dict[int, int] = {}

    def admit(self, value: Value) -> tuple[Any, ...]:
        token = super().admit(value)
        if not (value.buffer is EMPTY or isinstance(value.buffer, Placeholder)):
            self.uploads.append(value)
        return token

    def rollback(self) -> None:
        super().rollback()
        self.given = {number: argument for number, argument in self.given.items() if number < len(self.numbers)}

    def cut(self, cause: str | None = None, place: Any = None) -> None:
        if self.state is not self.root:
            raise NotOneRecord("it is cut inside" if cause is None else f"it is cut inside: {cause}")

    def read(self, value: Value, place: Any = None) -> None:
        raise NotOneRecord(_READS)


def _refuse(trace: Any) -> NoReturn:
    raise NotOneRecord("it is cut inside")


class Given(torch.Tensor):
    """In place of argument `index`, a 0-d tensor of the CPU: a run-time number. Its value is that of the call that is
    captured, and of no other."""

    __torch_function__: Any = private.no_torch_function
    index: int
    recorder: CaptureRecorder

    @staticmethod
    def of(tensor: torch.Tensor, index: int, recorder: CaptureRecorder) -> Given:
        """In place of `tensor`."""
        given = tensor.detach().as_subclass(Given)
        given.index, given.recorder = index, recorder
        return given

    def item(self) -> Any:
        """The value, which kernels append to the recorder's numbers."""
        self.recorder.given[len(self.recorder.numbers)] = self.index
        return super().item()


@dataclass(frozen=True, slots=True)
class Input:
    """The tensor argument `index` itself, or a view of its storage."""

    index: int
    view: View | None


@dataclass(frozen=True, slots=True)
class Fresh:
    """The value of `slot`, or a view of it; results with the same slot share a storage."""

    slot: int
    view: View | None


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Memory that nothing has written; results of one `number` share a storage."""

    number: int
    layout: Layout
    view: View | None


@dataclass(frozen=True, slots=True)
class Static:
    """None or a number: part of the graph."""

    value: Any


@dataclass(frozen=True, slots=True)
class RandomState:
    """The state of the device's generator before draw `index` of a forward graph; or, in a backward graph, the state
    that is its argument `index`."""

    index: int


Result = Input | Fresh | Unwritten | Static | RandomState


@dataclass(frozen=True, slots=True)
class Capture:
    """A graph as records, for inputs of certain layouts.

    `inputs` maps a slot to the argument that has it, and `uploads` a slot to a constant that the graph brings along.
    `written` maps an argument to the slot of its storage's new value. `values` has the layout of each slot that a
    storage holds afterwards and that is no input; `slots` is the number of all. `numbers` are the run-time numbers,
    constants of the graph except for the seed and the offset of each random op. `draws` has their indices and where
    they come from: None for the generator, or the argument that is a generator's state, and how many draws after it.
    `given` are the indices of the numbers that are arguments, 0-d tensors of the CPU, and of these arguments. `results`
    is what the graph returns.
    """

    records: tuple[Record, ...]
    inputs: dict[int, int]
    uploads: dict[int, Value]
    written: dict[int, int]
    values: dict[int, Layout]
    slots: int
    numbers: tuple[Any, ...]
    draws: tuple[tuple[int, tuple[int, int] | None], ...]
    given: tuple[tuple[int, int], ...]
    results: tuple[Result, ...]


def capture(
    graph: fx.GraphModule,
    args: Sequence[Any],
    constants: dict[str, torch.Tensor],
    states: Collection[int],
    backward: bool,
) -> Capture:
    """The records of `graph` on `args`, tensors of the device, of which only the layouts matter, numbers as 0-d tensors
    of the CPU, and Python values.

    `constants` are the tensors of its nodes that are inputs too; they follow the placeholders of the graph in `args`.
    `states` are the indices of those that are states of generators.
    Raises NotOneRecord, NewConstants, and what the graph's ops raise.
    """
    _check_ops(graph)
    outer = recorder()
    inner = CaptureRecorder(outer)
    with _apart(inner, outer):
        stand_ins = [RandomState(i) if i in states else t for i, t in enumerate(_stand_ins(args, inner))]
        before = [value_of(t) if _is_on_device(t) else None for t in stand_ins]
        first = len(args) - len(constants)
        known: dict[str, Any] = dict(zip(constants, stand_ins[first:], strict=True))
        run = _Run(graph, known, inner, backward)
        results = run.run(*stand_ins[:first])
        results = list(results) if isinstance(results, tuple | list) else [results]
        return _Summary(inner, stand_ins, before).of(before, results, run.sources)


@contextmanager
def _apart(inner: Recorder, outer: Recorder) -> Iterator[None]:
    """While active, this thread records into `inner`, and torch's state is what compiled graphs expect."""
    private.stash_in_thread(STASH, inner)
    try:
        with ExitStack() as stack:
            for context in (drawing_nothing(), private.without_modes(), private.without_autocast(), torch.no_grad()):
                stack.enter_context(context)
            yield
    finally:
        private.stash_in_thread(STASH, outer)


def is_number(value: Any) -> bool:
    """Whether a value is a 0-d tensor of the CPU, which ops take as a number (R2)."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0


def _is_on_device(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"


def _stand_ins(args: Sequence[Any], inner: CaptureRecorder) -> list[Any]:
    """A tensor in place of each tensor, with the same layout; tensors that share a storage still do."""
    values: dict[int, torch.Tensor] = {}
    stand_ins: list[Any] = []
    for index, arg in enumerate(args):
        if not _is_on_device(arg):
            stand_ins.append(Given.of(arg, index, inner) if is_number(arg) else arg)
            continue
        value = value_of(arg)
        base = values.get(id(value))
        if base is None:
            base = wrap(resident(value.layout, EMPTY if value.buffer is EMPTY else Placeholder()))
            values[id(value)] = base
        stand_ins.append(viewed(base, view_of(arg)))
    return stand_ins


def view_of(tensor: torch.Tensor) -> View:
    """How a tensor looks at its storage."""
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype


def viewed(base: torch.Tensor, view: View) -> torch.Tensor:
    """A new tensor on the storage of `base`."""
    size, stride, offset, dtype = view
    return private.set_storage(
        private.META, private.empty_tensor((0,), dtype), base.untyped_storage(), offset, list(size), list(stride)
    )


class _Run(GraphRun):
    """The run of a graph on placeholders. `constants` are those of its nodes that are inputs."""

    def __init__(
        self, graph: fx.GraphModule, constants: dict[str, torch.Tensor], inner: CaptureRecorder, backward: bool
    ):
        super().__init__(graph, backward)
        self.constants = constants
        self.inner = inner
        self.new_constants: dict[str, torch.Tensor] = {}
        self.sources: dict[int, tuple[int, int]] = {}
        self.recomputation = ExitStack()
        self.recomputes = False

    def run(self, *args: Any, **options: Any) -> Any:
        self.saved = tuple([t for t in args if isinstance(t, torch.Tensor)])
        with self.recomputation:
            results = super().run(*args, **options)
        if self.new_constants:
            raise NewConstants(self.new_constants)
        return results

    def run_node(self, n: fx.Node) -> Any:
        constant = self.constants.get(n.name)
        if constant is not None:
            return constant
        if n.op == "call_function":
            self._recompute(self.backward and n.meta.get("recompute") in _RECOMPUTED)
        result = super().run_node(n)
        if n.op == "get_attr" and isinstance(result, torch.Tensor) and result.device.type == "tpu":
            self.new_constants[n.name] = result
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = len(self.inner.numbers)
        result = super().call_function(target, args, kwargs)
        taken = {argument for number, argument in self.inner.given.items() if number >= before}
        if any(isinstance(v, Given) and v.index not in taken for v in pytree.tree_leaves((args, kwargs))):
            raise NotOneRecord(f"{target} reads the value of a tensor on the CPU")
        return result

    def save_state(self) -> Any:
        return RandomState(len(self._draws()))

    def in_state(self, state: Any, op: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        before = len(self._draws())
        result = op(*args, **kwargs)
        for number in range(before, len(self._draws())):
            self.sources[number] = state.index, number - before
        return result

    def _draws(self) -> list[Record]:
        return [record for record in self.inner.state.records() if record.rng is not None]

    def _recompute(self, wanted: bool) -> None:
        """Let what is recorded next be a recomputation of what the forward graph has computed, or not."""
        if wanted != self.recomputes:
            self.recomputes = wanted
            self.recomputation.close()
            if wanted:
                self.recomputation.enter_context(recomputing(self.inner, self.saved))


def _check_ops(graph: fx.GraphModule) -> None:
    """Raise NotOneRecord for a graph with an op that has to run at each call: the Python of one of the user's, and the
    draws of one that computes on the host."""
    rules = activation.engine().rules()
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            for op in pytree.tree_leaves((node.target, node.args, node.kwargs)):
                if not isinstance(op, OpOverload):
                    continue
                if op.namespace not in ("aten", "prims") and str(op) not in rules:
                    raise NotOneRecord(f"it calls {op}")
                if torch.Tag.nondeterministic_seeded in op.tags and _is_on_host(node):
                    raise NotOneRecord("it draws random numbers on the host")


def _is_on_host(node: fx.Node) -> bool:
    """Whether a node's result is on the CPU; of several the last, since a generator's state comes before."""
    results = [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]
    device = results[-1].device if results else node.kwargs.get("device")
    return device is not None and torch.device(str(device)).type == "cpu"


class _Summary:
    """What a capture leaves behind, in terms of the graph's arguments and of the slots of its trace."""

    def __init__(self, inner: CaptureRecorder, stand_ins: Sequence[Any], before: Sequence[Value | None]):
        self.inner = inner
        self.stand_ins = stand_ins
        self.storages: dict[int, int] = {}  # of the first argument with that storage
        self.inputs: dict[int, int] = {}
        self.values: dict[int, Layout] = {}
        self.unwritten: dict[int, int] = {}
        for index, value in enumerate(before):
            if value is not None:
                self.storages.setdefault(id(stand_ins[index].untyped_storage()), index)
                if value.epoch == inner.epoch:
                    self.inputs.setdefault(value.slot, index)

    def of(
        self, before: Sequence[Value | None], results: Sequence[Any], sources: dict[int, tuple[int, int]]
    ) -> Capture:
        """The capture of a graph that returned `results`; `before` are the values its arguments had."""
        written: dict[int, int] = {}
        for index in self.storages.values():
            value = value_of(self.stand_ins[index])
            if value is not before[index]:
                written[index] = self._slot(value)
        returned = tuple([self._result(result) for result in results])
        records = tuple(self.inner.state.records())
        draws = [record.rng for record in records if record.rng is not None]
        return Capture(
            records,
            self.inputs,
            {value.slot: value for value in self.inner.uploads},
            written,
            self.values,
            self.inner.slots,
            tuple(self.inner.numbers),
            tuple([(index, sources.get(number)) for number, index in enumerate(draws)]),
            tuple(self.inner.given.items()),
            returned,
        )

    def _slot(self, value: Value) -> int:
        if value.epoch != self.inner.epoch:
            raise NotOneRecord("it keeps a constant")
        if value in self.inner.uploads:
            raise NotOneRecord("it returns a constant")
        if value.slot not in self.inputs:
            self.values[value.slot] = value.layout
        return value.slot

    def _result(self, result: Any) -> Result:
        if result is None or isinstance(result, bool | int | float | complex):
            return Static(result)
        if isinstance(result, RandomState):
            return result
        if not isinstance(result, torch.Tensor):
            raise NotOneRecord(f"it returns a {type(result).__name__}")
        if result.layout is not torch.strided:
            raise NotOneRecord("it returns a sparse tensor")
        if result.device.type != "tpu":
            raise NotOneRecord(f"it returns a tensor on {result.device}")
        if result.is_conj() or result.is_neg():
            raise NotOneRecord("it returns a tensor that is conjugated or negated lazily")
        for index, stand_in in enumerate(self.stand_ins):
            if result is stand_in:
                return Input(index, None)
        index = self.storages.get(id(result.untyped_storage()))
        if index is not None:
            return Input(index, view_of(result))
        value = value_of(result)
        view = None if is_natural(result, value.layout) else view_of(result)
        if value.buffer is EMPTY and value.epoch != self.inner.epoch:
            number = self.unwritten.setdefault(id(result.untyped_storage()), len(self.unwritten))
            return Unwritten(number, value.layout, view)
        return Fresh(self._slot(value), view)
