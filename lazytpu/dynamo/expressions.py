"""Dynamo's expressions for the sizes of a graph, transferred to the records of its capture.

Each node of a graph that Dynamo made symbolic has expressions for the sizes of its result, over the graph's symbols:
sizes of its arguments. Where a record takes or produces such a number, the expression takes its place as a `Size`. The
engine derives the remaining sizes, and verifies all of them for each trace that they serve.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeGuard, cast

import torch
from torch import fx
from torch._ops import OpOverload

from lazytpu.dynamo.placeholders import CaptureRecorder
from lazytpu.dynamo.results import Expressed, view_of
from lazytpu.frontend.tensors import is_natural, value_of
from lazytpu.frontend.torch_private import pytree
from lazytpu.ir.forms import symbol
from lazytpu.ir.symbolic import MIN_SYMBOL, Derivation, LostSize, number_at_bound
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout, Value, row_major


@dataclass(frozen=True, slots=True)
class Taken:
    """A tensor that a node takes: the node that produced it, its value, and its view of the value's storage."""

    node: fx.Node
    value: Value
    view: Any


class Expressions:
    """The expressions of one capture, into `inner`, of a graph on these arguments."""

    def __init__(self, graph: fx.GraphModule, inner: CaptureRecorder, args: Sequence[Any]):
        self._inner, self._state = inner, inner.state
        self._records: list[Record] = []
        nodes = graph.graph.find_nodes(op="placeholder")
        natural = {
            index: (node.meta["val"], value_of(arg).layout)
            for index, (node, arg) in enumerate(zip(nodes, args, strict=False))
            if _is_on_device(arg) and _is_strided(node.meta.get("val")) and is_natural(arg, value_of(arg).layout)
        }
        self.symbols: dict[str, tuple[int, int]] = {}
        sizes: dict[Any, int] = {}
        for index, (expected, layout) in natural.items():
            for dim, (size, number) in enumerate(zip(expected.shape, layout.shape, strict=True)):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and number >= MIN_SYMBOL:
                    sizes.setdefault(size.node.expr, number)
                    self.symbols.setdefault(str(size.node.expr), (index, dim))
        self.derivation = Derivation({str(name): (MIN_SYMBOL, size) for name, size in sizes.items()})
        self._known: dict[Any, Any] = {name: self.derivation.size(symbol(str(name))) for name in sizes}
        self._layouts = {index: self._layout(*pair) for index, pair in natural.items()}

    def expressed(self) -> Expressed | None:
        """Return the records with their expressions; None if no size is a symbol."""
        return Expressed(tuple(self._records), self.symbols, self._layouts) if self.symbols else None

    def given(self, node: fx.Node, env: Mapping[fx.Node, Any]) -> list[Taken]:
        """Return the tensors that a node is about to take."""
        tensors = [(source, env[source]) for source in node.all_input_nodes if _is_on_device(env[source])]
        return [Taken(source, value_of(tensor), view_of(tensor)) for source, tensor in tensors]

    def ran(self, node: fx.Node, given: Sequence[Taken], result: Any) -> None:
        """Add the records of a node that has run."""
        results = zip(pytree.tree_leaves(result), pytree.tree_leaves(node.meta.get("val")), strict=False)
        layouts = {
            value.slot: self._layout(expected, value.layout)
            for tensor, expected in results
            if _is_on_device(tensor) and _is_strided(expected)
            for value in (value_of(tensor),)
            if is_natural(tensor, value.layout) and len(expected.shape) == len(value.layout.shape)
        }
        self._records += [self._expressed(record, node, layouts, given) for record in self._recorded()]

    def _expressed(self, record: Record, node: fx.Node, made: Mapping[int, Layout], given: Sequence[Taken]) -> Record:
        """A record of a node with the expressions of its numbers; `made` are the layouts of the node's results."""
        slots = iter(record.out_slots)
        outs = [None if layout is None else made.get(next(slots), layout) for layout in record.outs]
        arguments = arguments_of(node)
        taken = {n: self._argument(v, arguments.get(n), given) for n, v in record.arguments.items()}
        return replace(record, arguments=taken, outs=tuple(outs))

    def _recorded(self) -> list[Record]:
        """Return the records since the last call."""
        new: list[Record] = []
        state, self._state = self._state, self._inner.state
        last: Any = self._state
        while last is not state:
            new.extend(reversed(last.recorded))
            last = last.parent
        return new[::-1]

    def _argument(self, value: Any, argument: Any, given: Sequence[Taken]) -> Any:
        """Return a record's argument with expressions, given the node's `argument`."""
        if isinstance(value, Operand):
            return value if value.view is None else self._operand(value, argument, given)
        if type(value) is int:
            return self._number(argument.meta.get("val"), value) if isinstance(argument, fx.Node) else value
        if isinstance(value, list | tuple) and isinstance(argument, list | tuple) and len(value) == len(argument):
            pairs = zip(cast("Sequence[Any]", value), cast("Sequence[Any]", argument), strict=True)
            return type(value)([self._argument(item, expected, given) for item, expected in pairs])
        return value

    def _operand(self, operand: Operand, argument: Any, given: Sequence[Taken]) -> Operand:
        """Return an operand with an expression for its view, if it is a tensor that the node takes."""
        for tensor in self._taken(operand.slot, argument, given):
            if tensor.view == operand.view:
                return Operand(operand.slot, self._view(tensor))
        return operand

    def _taken(self, slot: int, argument: Any, given: Sequence[Taken]) -> list[Taken]:
        """The strided tensors on a slot that may be an argument of a node: all of them without an `argument`."""
        tensors = [t for t in given if t.value.epoch == self._inner.epoch and t.value.slot == slot]
        return [t for t in tensors if argument in (t.node, None) and _is_strided(t.node.meta.get("val"))]

    def _view(self, taken: Taken) -> tuple[Any, ...]:
        """How a tensor looks at its storage, with expressions."""
        (size, stride, offset, dtype), expected = taken.view, taken.node.meta["val"]
        size = self._numbers(expected.shape, size)
        stride = self._strides(expected.stride(), stride, size)
        return size, stride, self._number(expected.storage_offset(), offset), dtype

    def _layout(self, expected: torch.Tensor, layout: Layout) -> Layout:
        """Return a value's layout with the sizes that Dynamo expected, in the dimension order of `layout`.

        Returns `layout` itself if its strides do not follow from the sizes, which may be so for an empty tensor.
        """
        return self._dense(layout, self._numbers(expected.shape, layout.shape))

    def _dense(self, layout: Layout, shape: tuple[Any, ...]) -> Layout:
        """Return a layout with another shape in the same dimension order, or `layout` where its strides do not follow
        from its sizes."""
        order = layout.memory_order
        strides = dict(zip(order, row_major(tuple([shape[dim] for dim in order])), strict=True))
        found = tuple([strides[dim] for dim in range(len(shape))])
        here = tuple(map(number_at_bound, found))
        return Layout(layout.dtype, shape, found) if here == layout.stride else layout

    def _strides(self, expected: Sequence[Any], here: Sequence[int], size: Sequence[Any]) -> tuple[Any, ...]:
        return self._numbers(expected, here)

    def _numbers(self, expected: Sequence[Any], here: Sequence[int]) -> tuple[Any, ...]:
        return tuple([self._number(size, number) for size, number in zip(expected, here, strict=True)])

    def _number(self, expected: Any, here: int) -> Any:
        """Return the size that torch expected to equal this number; the number itself if it has no expression."""
        if not isinstance(expected, torch.SymInt):
            return here
        try:
            size = self._size(expected.node.expr)
        except LostSize:
            return here
        return size if number_at_bound(size) == here else here

    def _size(self, expression: Any) -> Any:
        """Convert a Dynamo expression to a size, or to an int if it is constant. Raises LostSize."""
        if expression not in self._known:
            compute = _OPERATIONS.get(type(expression).__name__)
            if compute is None and not expression.is_Integer:
                raise LostSize(f"{expression} is no form of sizes")
            operands = map(self._size, expression.args)
            self._known[expression] = int(expression) if compute is None else compute(*operands)
        return self._known[expression]


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: reduce(operator.add, terms),
    "Mul": lambda *factors: reduce(operator.mul, factors),
    "Pow": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda of, by, modulus: of // by % modulus,
    "Max": lambda *sizes: max(sizes),
    "Min": lambda *sizes: min(sizes),
}
"The operation of each expression class, sympy's or torch's. A maximum or minimum is resolved as in this call."


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """The arguments of a node by the names in the schema of its op, with the defaults of those left out."""
    if not isinstance(node.target, OpOverload):
        return dict(node.kwargs)
    schema = node.target._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return defaults | dict(zip([argument.name for argument in schema], node.args, strict=False)) | dict(node.kwargs)


def has_sizes(graph: fx.GraphModule) -> bool:
    """Return whether some sizes of a graph's arguments are symbols."""
    values = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
    return any(isinstance(size, torch.SymInt) for value in values if _is_strided(value) for size in value.shape)


def _is_strided(value: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _is_on_device(value: Any) -> TypeGuard[torch.Tensor]:
    return _is_strided(value) and value.device.type == "tpu"
