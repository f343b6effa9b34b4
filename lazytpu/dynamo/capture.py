"""Capture: expand a graph into records, by running it once on placeholders; nothing is computed.

The ops run through the same kernels as eager code, but into a recorder of their own. So views, writes, random numbers,
decompositions and checks behave as in eager code, and the result is an ordinary trace. A graph whose Python code needs
a value, or which computes on another device, raises `NotOneRecord`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from typing import Any, TypeGuard

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from lazytpu.dynamo.count_expressions import CountExpressions, of_tensors
from lazytpu.dynamo.counted_part import is_opaque, ops_of
from lazytpu.dynamo.expressions import Expressions
from lazytpu.dynamo.interpret import GraphRun
from lazytpu.dynamo.placeholders import CaptureRecorder, Given, NewConstants, NotOneRecord, Placeholder
from lazytpu.dynamo.results import Capture, RandomState, Summary, view_of, viewed
from lazytpu.frontend import torch_private as private
from lazytpu.frontend.device.generators import drawing_nothing
from lazytpu.frontend.ops.counts import Counts
from lazytpu.frontend.recording.recomputing import recomputing
from lazytpu.frontend.tensors import STASH, recorder, value_of, wrap
from lazytpu.frontend.torch_private import pytree
from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import Record
from lazytpu.trace.value import EMPTY, resident

_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def capture(
    graph: fx.GraphModule,
    args: Sequence[Any],
    constants: dict[str, torch.Tensor],
    states: Collection[int],
    backward: bool,
    counts: Counts | None = None,
    symbolic: bool = False,
) -> Capture:
    """Return the records of `graph` for arguments like `args`: device tensors, of which only the layouts matter,
    numbers as 0-d CPU tensors, and Python values.

    - `constants`: tensors of the graph's nodes that are inputs, too. They follow the placeholders in `args`.
    - `states`: the indices of arguments that are generator states.
    - `counts`: the counts of data-dependent sizes; the graph returns their totals after its own results.
    - `symbolic`: whether to derive expressions for sizes that vary.

    Raises NotOneRecord, NewConstants, and any error of the graph's ops.
    """
    _check_ops(graph)
    outer = recorder()
    inner = CaptureRecorder(outer)
    with _apart(inner, outer):
        stand_ins = [RandomState(i) if i in states else t for i, t in enumerate(_stand_ins(args, inner))]
        before = [value_of(t) if _is_on_device(t) else None for t in stand_ins]
        first = len(args) - len(constants)
        known: dict[str, Any] = dict(zip(constants, stand_ins[first:], strict=True))
        expressions = None
        if symbolic:
            kind = Expressions if counts is None else partial(CountExpressions, counts=counts)
            expressions = kind(graph, inner, stand_ins)
        run = _Run(graph, known, inner, backward, counts, expressions)
        results = run.run(*stand_ins[:first])
        results = list(results) if isinstance(results, tuple | list) else [results]
        results += [] if counts is None else counts.totals
        expressed = None if expressions is None else expressions.expressed()
        return Summary(inner, stand_ins, before).of(before, results, run.sources, expressed)


@contextmanager
def _apart(inner: Recorder, outer: Recorder) -> Iterator[None]:
    """Context: this thread records into `inner`, with the torch state that compiled graphs expect."""
    private.stash_in_thread(STASH, inner)
    try:
        with ExitStack() as stack:
            for context in (drawing_nothing(), private.without_modes(), private.without_autocast(), torch.no_grad()):
                stack.enter_context(context)
            yield
    finally:
        private.stash_in_thread(STASH, outer)


def is_number(value: Any) -> bool:
    """Return whether a value is a 0-d CPU tensor, which ops take as a run-time number (R2)."""
    return isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.dim() == 0


def _is_on_device(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.device.type == "tpu"


def _stand_ins(args: Sequence[Any], inner: CaptureRecorder) -> list[Any]:
    """Return a placeholder tensor of the same layout for each device tensor; shared storages stay shared."""
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


class _Run(GraphRun):
    """The run of a graph on placeholders. `constants` are the inputs that replace tensors of its nodes."""

    def __init__(
        self,
        graph: fx.GraphModule,
        constants: dict[str, torch.Tensor],
        inner: CaptureRecorder,
        backward: bool,
        counts: Counts | None,
        expressions: Expressions | None,
    ):
        super().__init__(graph, backward)
        self.constants = constants
        self.inner = inner
        self.counts = counts
        self.expressions = expressions
        self.counted: dict[Any, torch.Tensor] = {}  # symbol -> the counted total, as a 0-d tensor
        self.new_constants: dict[str, torch.Tensor] = {}
        self.sources: dict[int, tuple[int, int]] = {}
        self.recomputation = ExitStack()
        self.recomputes = False

    def run(self, *args: Any) -> Any:
        self.saved = tuple([t for t in args if isinstance(t, torch.Tensor)])
        with self.recomputation:
            results = super().run(*args)
        if self.new_constants:
            raise NewConstants(self.new_constants)
        return results

    def run_node(self, n: fx.Node) -> Any:
        constant = self.constants.get(n.name)
        if constant is not None:
            return constant
        if n.op == "call_function":
            self._recompute(self.backward and n.meta.get("recompute") in _RECOMPUTED)
        taken = [] if self.expressions is None else self.expressions.given(n, self.env)
        result = super().run_node(n)
        expected = n.meta.get("val")
        if self.counted and isinstance(result, torch.Tensor) and isinstance(expected, torch.Tensor):
            if result.dtype != expected.dtype:  # a number promotes less than the tensor of a count
                raise NotOneRecord(f"{n.target} promotes a count")
        if self.counts is not None and self.counts.asked and n.meta.get("unbacked_bindings"):
            self._count(n, self.counts)
        if self.expressions is not None:
            self.expressions.ran(n, taken, result)
        if n.op == "get_attr" and isinstance(result, torch.Tensor) and result.device.type == "tpu":
            self.new_constants[n.name] = result
        return result

    def _count(self, n: fx.Node, counts: Counts) -> None:
        """Let the symbol of a size of a node be the count that it asked for last. Raises NotOneRecord where torch put
        another size in its place, which it has to equal."""
        number = counts.asked[-1]
        total = counts.totals[number]
        symbols = set(_symbols(n.meta.get("val"))) - counts.sizes.keys()
        new = symbols - self.counted.keys()
        if len(new) > 1 or not (new or any(self.counted[name] is total for name in symbols)):
            raise NotOneRecord(f"{n.target} has a count that torch replaced by another size")
        for name in new:
            self.counted[name] = total
            if isinstance(self.expressions, CountExpressions):
                self.expressions.count(name, number)

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> Any:
        """Return a node's arguments as torch does; a counted number becomes its 0-d tensor where an op accepts one."""
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        if not self.counted or not isinstance(n.target, OpOverload):
            return args, kwargs
        parameters = of_tensors(n.target)._schema.arguments
        arguments = zip(n.args, args, parameters, strict=False)
        args = tuple([self._number(node, arg, parameter.type) for node, arg, parameter in arguments])
        if isinstance(self.expressions, CountExpressions):
            self.expressions.computed()
        return args, kwargs

    def _number(self, node: Any, argument: Any, kind: Any) -> Any:
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not isinstance(value, torch.SymInt) or not isinstance(kind, torch.TensorType):
            return argument
        total = _total(value.node.expr, self.counted)
        return argument if total is None else total

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = len(self.inner.numbers)
        if self.counted and isinstance(target, OpOverload) and any(isinstance(a, torch.Tensor) for a in args[1:]):
            target = of_tensors(target)
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
        """Start or end a region of recomputation: it repeats computations of the forward graph."""
        if wanted != self.recomputes:
            self.recomputes = wanted
            self.recomputation.close()
            if wanted:
                self.recomputation.enter_context(recomputing(self.inner, self.saved))


def _symbols(value: Any) -> list[Any]:
    """Return the tensor sizes in `value` that are single symbols."""
    tensors = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
    sizes = [size.node.expr for t in tensors for size in t.shape if isinstance(size, torch.SymInt)]
    return [size for size in sizes if size.is_Symbol]


def _total(size: Any, counted: dict[Any, torch.Tensor]) -> Any:
    """Return a size as a device tensor or an integer; None unless it is a sum, product or maximum of counted sizes."""
    if size.is_Integer:
        return int(size)
    if size.is_Symbol:
        return counted.get(size)
    totals = [_total(total, counted) for total in size.args]
    compute = _TOTALS.get(type(size).__name__)
    if compute is None or any(total is None for total in totals):
        return None
    return reduce(compute, totals)


_TOTALS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "Max": lambda one, other: one.clamp(min=other) if isinstance(one, torch.Tensor) else other.clamp(min=one),
}


def _check_ops(graph: fx.GraphModule) -> None:
    """Raise NotOneRecord for a graph with an op that has to run at each call: a user-defined Python op, or random draws
    on the host."""
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            for op in ops_of(node):
                if is_opaque(op):
                    raise NotOneRecord(f"it calls {op}")
                if torch.Tag.nondeterministic_seeded in op.tags and _is_on_host(node):
                    raise NotOneRecord("it draws random numbers on the host")


def _is_on_host(node: fx.Node) -> bool:
    """Return whether a node's last result is on the CPU. Earlier ones may be generator states, which always are."""
    results = [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, torch.Tensor)]
    device = results[-1].device if results else node.kwargs.get("device")
    return device is not None and torch.device(str(device)).type == "cpu"
