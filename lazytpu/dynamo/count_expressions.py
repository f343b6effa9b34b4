"""The expressions of a graph whose sizes depend on values, over its counts.

No program is compared with the counts of a run, which the host does not know. So each number of a record that may
depend on a count is an expression of Dynamo's or a constant of the graph; otherwise NotOneRecord is raised. A node with
counted sizes

1. records its own op: the numbers of arguments and results are the node's; or
2. takes a mask (`MASKED`): it counts the true elements, finds their indices, and records its own op; or
3. records nothing: its result is a view by its schema, or lies in memory as its argument does at all counts.

A symbol begins at 1. Where a count is 0, a tensor that has it as a size has no elements, and its strides do not matter:
torch's factor `Max(1, count)` of a stride is `count`. No other number may be a maximum or a minimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx
from torch._ops import OpOverload

from lazytpu.dynamo.counted_part import is_counted, numbers_of
from lazytpu.dynamo.expressions import Expressions, Taken, arguments_of
from lazytpu.dynamo.placeholders import CaptureRecorder, NotOneRecord
from lazytpu.dynamo.results import Expressed
from lazytpu.frontend.ops.counts import Counts
from lazytpu.frontend.torch_private import pytree
from lazytpu.ir.forms import symbol
from lazytpu.ir.symbolic import LostSize, Size, number_at_bound
from lazytpu.trace.extract import operands
from lazytpu.trace.trie import Number, Operand, Record
from lazytpu.trace.value import Layout

NAMES = ("n", "m", "k")
"The names of a graph's counts; a graph with more of them is recorded op by op."
aten = torch.ops.aten
NONZERO = "lazytpu.nonzero.default"
HELPERS = frozenset(("aten.ne.Scalar", "aten.sum.default", "aten.clone.default", "aten.index_select.default", NONZERO))
MASKED = {
    aten.nonzero.default: NONZERO,
    aten.masked_select.default: "aten.index_select.default",
    aten.index.Tensor: "aten.index.Tensor",
    aten.index_put.default: "aten.index_put_.default",
}
"Ops that take masks: each records `HELPERS`, whose numbers are constants and counts, and an op with its own arguments."
COPIES = frozenset((aten.clone.default, aten._to_copy.default))
ALIASES = frozenset((aten._unsafe_view.default,))
"Views whose schema does not declare the alias."


class CountExpressions(Expressions):
    """The expressions of a capture at the greatest `counts`. Sizes of its arguments are constants."""

    def __init__(self, graph: fx.GraphModule, inner: CaptureRecorder, args: Sequence[Any], counts: Counts):
        self._counts, self._found = counts, 0
        self._slots: dict[int, Layout] = {}
        self._constants = dict(counts.sizes)
        super().__init__(graph, inner, args)
        self._known = dict(counts.sizes)
        self.derivation.symbols.clear()

    def expressed(self) -> Expressed:
        """Return the records with their expressions."""
        return Expressed(tuple(self._records), {}, {})

    def count(self, name: Any, number: int) -> None:
        """Define a symbol of Dynamo's as a count, by its number."""
        self._known[name] = size = self._size_of(number)
        if not _is_size(size):
            self._constants[name] = size

    def computed(self) -> None:
        """Append the records that compute a number for the next node: sums and products of counts, 0-d tensors."""
        for record in self._recorded():
            self._admit(record)
            self._records.append(self._keep(record))

    def _admit(self, record: Record) -> None:
        self._slots |= {slot: layout for slot, layout, _ in record.admitted}

    def _keep(self, record: Record) -> Record:
        """Note the layouts of the values that a record creates and writes. Returns the record."""
        self._slots |= zip(record.out_slots, [out for out in record.outs if out is not None], strict=True)
        for name, slots in record.written.items():
            written = operands(record.arguments[name])
            self._slots |= {new: self._slots[operand.slot] for new, operand in zip(slots, written, strict=True)}
        return record

    def ran(self, node: fx.Node, given: Sequence[Taken], result: Any) -> None:
        """Append the records of a node."""
        before = len(self._records)
        super().ran(node, given, result)
        if len(self._records) == before and self._varies(node):
            self._check_view(node)

    def _size_of(self, number: int) -> Any:
        """Return a count as a size, or as an int if it is assumed."""
        if number in self._counts.assumed:
            return self._counts.assumed[number]
        if number >= len(NAMES):
            raise NotOneRecord(f"it has more than {len(NAMES)} counts")
        name, top = NAMES[number], self._counts.bounds[number]
        self.derivation.symbols[name], self.derivation.bound[name] = (1, top), top
        return self.derivation.size(symbol(name))

    def _varies(self, node: fx.Node) -> bool:
        """Return whether sizes of a node, or of its arguments, depend on counts."""
        return is_counted(node, self._constants.keys())

    def _check_view(self, node: fx.Node) -> None:
        """Raise NotOneRecord unless a node that records nothing has a view of its argument as its result."""
        results = _tensors(node.meta.get("val"))
        if not results or not isinstance(node.target, OpOverload) or node.target in ALIASES:
            return  # a number, or one of several results
        if all(each.alias_info is not None and not each.alias_info.is_write for each in node.target._schema.returns):
            return
        argument = next((tensor for each in node.all_input_nodes for tensor in _tensors(each.meta.get("val"))), None)
        if argument is None or any(_spelled(each) != _spelled(argument) for each in results):
            raise NotOneRecord(f"{node.target} may copy at other counts")

    def _expressed(self, record: Record, node: fx.Node, made: Mapping[int, Layout], given: Sequence[Taken]) -> Record:
        self._admit(record)
        self._found += str(record.op) == NONZERO
        if self._varies(node):
            ops = (node.target, of_tensors(node.target)) if isinstance(node.target, OpOverload) else ()
            if node.target is aten.as_strided.default:
                raise NotOneRecord("the strides of a view are counted")
            if node.target in MASKED:
                record = self._masked(record, node, made, given)
            elif record.op in ops and not record.written and all(slot in made for slot in record.out_slots):
                record = super()._expressed(record, node, made, given)
            elif str(record.op) == "aten.copy_.default" and node.target in COPIES:
                record = self._copied(record, made, given)
            else:
                raise NotOneRecord(f"{node.target} is recorded as {record.op}, with numbers of its own")
        return self._keep(record)

    def _masked(self, record: Record, node: fx.Node, made: Mapping[int, Layout], given: Sequence[Taken]) -> Record:
        """Return a record of an op that takes masks with its expressions."""
        op, own = str(record.op), MASKED[cast("OpOverload", node.target)]
        arguments, taken = arguments_of(node), dict[str, Any]()
        for name, value in record.arguments.items():
            if isinstance(value, Operand):
                taken[name] = self._operand(value, None, given)
            elif op == NONZERO:  # whose only number is the count
                taken[name] = self._size_of(self._counts.asked[self._found - 1])
            elif op in HELPERS:
                taken[name] = value
            elif op != own:
                raise NotOneRecord(f"{node.target} is recorded as {record.op}, with numbers of its own")
            elif isinstance(value, list | tuple):
                parts = cast("Sequence[Any]", value)
                taken[name] = [v if v is None else self._operand(v, None, given) for v in parts]
            else:
                taken[name] = self._argument(value, arguments.get(name), given)
        outs = [
            made.get(slot) or self._result(record, out, taken)
            for slot, out in zip(record.out_slots, [out for out in record.outs if out is not None], strict=True)
        ]
        return replace(record, arguments=taken, outs=tuple(outs))

    def _copied(self, record: Record, made: Mapping[int, Layout], given: Sequence[Taken]) -> Record:
        """Return a copy into new memory with its expressions: the memory has the layout of the node's result."""
        into = record.arguments["self"].slot
        ((written,),) = record.written.values()
        if written not in made or (into, True) not in [(slot, empty) for slot, _, empty in record.admitted]:
            raise NotOneRecord("it copies into memory that something has written")
        arguments = record.arguments | {"src": self._operand(record.arguments["src"], None, given)}
        self._slots[into] = made[written]
        admitted = [(slot, made[written] if slot == into else layout, e) for slot, layout, e in record.admitted]
        return replace(record, arguments=arguments, admitted=tuple(admitted))

    def _result(self, record: Record, out: Layout, taken: Mapping[str, Any]) -> Layout:
        """Return the layout of a result that is no result of the node."""
        if str(record.op) == NONZERO:
            return Layout(out.dtype, (taken["count"], out.shape[1]), (1, taken["count"]))
        if not out.shape:
            return out
        operand = taken["self"]
        shape = self._slots[operand.slot].shape if operand.view is None else operand.view[0]
        return self._dense(out, tuple(shape))

    def _operand(self, operand: Operand, argument: Any, given: Sequence[Taken]) -> Operand:
        layout = self._slots[operand.slot]
        full = (layout.shape, layout.stride, 0, layout.dtype)
        at_bound = _at_bound(operand.view or full)
        taken = self._taken(operand.slot, argument, given)
        views = {self._spell(view): view for view in [self._view(t) for t in taken if t.view == at_bound]}
        if len(views) > 1:
            raise NotOneRecord("it takes one of two views that are equal at the greatest counts")
        if views:
            ((spelled, view),) = views.items()
            return Operand(operand.slot, None if spelled == self._spell(full) else view)
        if operand.view is None and not taken:
            return operand  # a result of the same node
        if not any(map(_is_size, layout.shape)) and not any(_any_size(self._view(tensor)) for tensor in taken):
            return operand
        # The indices along one dimension, which are a row of their own in the result of `nonzero`.
        count = layout.shape[0]
        if not _is_size(count):
            raise NotOneRecord("it takes a view that no node has made")
        dim, dtype = at_bound[2] // number_at_bound(count), layout.dtype
        row = (count,), (1,), count * dim, dtype
        if self._spell(layout.stride) != self._spell((1, count)) or _at_bound(row) != at_bound:
            raise NotOneRecord("it takes a view that no node has made")
        return Operand(operand.slot, row)

    def _spell(self, numbers: Any) -> str:
        """Return the forms of the numbers of a view as a text."""
        if isinstance(numbers, tuple):
            return str([self._spell(number) for number in cast("tuple[Any, ...]", numbers)])
        return str(self.derivation.form_of(numbers)) if isinstance(numbers, int | Size) else str(numbers)

    def _view(self, taken: Taken) -> tuple[Any, ...]:
        # An argument covers a storage of its own, whatever it is a view of elsewhere.
        return taken.view if taken.node.op == "placeholder" else super()._view(taken)

    def _argument(self, value: Any, argument: Any, given: Sequence[Taken]) -> Any:
        if isinstance(value, Operand):
            return self._operand(value, argument, given)
        if type(value) is int and isinstance(argument, fx.Node):
            return super()._argument(value, argument, given)
        # A run-time number of a node would be that of the greatest counts.
        if isinstance(value, list | tuple) and isinstance(argument, list | tuple) and len(value) == len(argument):
            return super()._argument(value, argument, given)
        if not isinstance(argument, fx.Node):
            number = self._inner.numbers[value.index] if isinstance(value, Number) else value
            if repr(number) == repr(argument) or not isinstance(number, int | float | complex | list | tuple):
                return value
        raise NotOneRecord(f"an argument of an op is {value}, and {argument} at other counts")

    def _layout(self, expected: torch.Tensor, layout: Layout) -> Layout:
        return self._dense(layout, self._numbers(expected.shape, layout.shape))

    def _dense(self, layout: Layout, shape: tuple[Any, ...]) -> Layout:
        """Return the layout with another shape in the same dimension order."""
        dense = super()._dense(layout, shape)
        if dense is layout and any(map(_is_size, shape)):
            raise NotOneRecord("it has a tensor whose strides do not follow from its sizes")
        return dense

    def _number(self, expected: Any, here: int) -> Any:
        return self._form(self._expression(expected), here)

    def _strides(self, expected: Sequence[Any], here: Sequence[int], size: Sequence[Any]) -> tuple[Any, ...]:
        # The strides of a tensor without elements, and of a dimension of one element, do not matter.
        if any(not _is_size(n) and n == 0 for n in size):
            return tuple(here)
        single = [not _is_size(n) and n == 1 for n in size]
        strides = zip(map(self._expression, expected), here, single, strict=True)
        return tuple([now if alone else self._form(_without_least(stride), now) for stride, now, alone in strides])

    def _expression(self, number: Any) -> Any:
        """Return the expression of a number of torch's, or an int if it depends on no count."""
        if not isinstance(number, torch.SymInt):
            return number
        expression = number.node.expr.xreplace(self._constants)
        return int(expression) if isinstance(expression, int) or expression.is_Integer else expression

    def _form(self, expression: Any, here: int) -> Any:
        """Return the form of an expression whose value at the greatest counts is `here`."""
        form = expression
        if not isinstance(expression, int):
            if expression.find(_is_extreme):
                raise NotOneRecord(f"{expression} is no form of counts")
            self.derivation.guards.clear()
            try:
                form = self._size(expression)
            except LostSize as error:
                raise NotOneRecord(f"{error}") from error
            if self.derivation.guards:
                raise NotOneRecord(f"{expression} is another form unless {next(iter(self.derivation.guards))}")
        if number_at_bound(form) != here:
            raise NotOneRecord(f"a number is {here} where torch has {expression}")
        return form


def of_tensors(op: OpOverload) -> OpOverload:
    """Return the overload of an op that takes a 0-d tensor where this one takes a number."""
    packet = op.overloadpacket
    return packet.Tensor if op._overloadname == "Scalar" and "Tensor" in packet.overloads() else op


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _spelled(tensor: torch.Tensor) -> list[str]:
    return [str(number) for number in numbers_of(tensor)]


def _is_size(number: Any) -> bool:
    return type(number) is Size


def _any_size(view: tuple[Any, ...]) -> bool:
    size, stride, offset, _ = view
    return any(map(_is_size, (*size, *stride, offset)))


def _at_bound(view: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a view at the greatest counts."""
    size, stride, offset, dtype = view
    return tuple(map(number_at_bound, size)), tuple(map(number_at_bound, stride)), number_at_bound(offset), dtype


def _is_extreme(expression: Any) -> bool:
    return type(expression).__name__ in ("Max", "Min")


def _without_least(stride: Any) -> Any:
    """Return a stride without the factors `Max(1, count)`."""
    if isinstance(stride, int):
        return stride
    extremes = [extreme for extreme in stride.find(_is_extreme) if len(extreme.args) == 2 and 1 in extreme.args]
    return stride.xreplace({extreme: next(arg for arg in extreme.args if arg != 1) for extreme in extremes})
