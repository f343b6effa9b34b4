"""A graph with sizes that depend on values, as `x[mask]` has where Dynamo captures it: one record, and nothing is read.

The part of the graph with such sizes (`counted_part`) is captured at assumed counts. From its records the engine makes
a function that counts on the device. The rest of the graph calls it as one op. A graph that returns a tensor of such a
size is recorded op by op, and the count is read, because torch has to know the size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import fx

from lazytpu.dynamo.count_expressions import NAMES
from lazytpu.dynamo.counted_part import calling, counted_part, has_symbols, known_sizes
from lazytpu.dynamo.placeholders import NotOneRecord, Placeholder
from lazytpu.dynamo.results import Capture, Fresh, Input, Result, Static
from lazytpu.frontend import activation
from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.ops.counts import Counts, counting
from lazytpu.frontend.tensors import is_dense, layout, wrap
from lazytpu.ir.symbolic import MIN_SYMBOL
from lazytpu.trace.subtraces import SUBTRACES, Subtrace
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import resident, row_major

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("counted(Tensor[] inputs, str body) -> Tensor[]")
OPS: Any = torch.ops.lazytpu


@override("lazytpu.counted.default")
def _like_function(inputs: list[torch.Tensor], body: str) -> list[torch.Tensor]:
    outs = SUBTRACES[body].outs
    return [torch.empty_strided(out.shape, out.stride, dtype=out.dtype, device="meta") for out in outs]


def has_counts(graph: fx.GraphModule) -> bool:
    """Return whether ops of a graph make sizes that depend on values."""
    return any(n.meta.get("unbacked_bindings") for n in graph.graph.nodes)


Capturing = Callable[[fx.GraphModule, list[Any], Counts, bool], Capture]
"A function that captures a graph for arguments at assumed counts, with or without the expressions of its numbers."


def counted(graph: fx.GraphModule, args: Sequence[Any], capturing: Capturing) -> fx.GraphModule:
    """Return a graph of the same arguments in which one op counts on the device. Raises NotOneRecord if that is
    impossible."""
    sizes = known_sizes(graph, args)
    part = counted_part(graph, frozenset(sizes))
    inputs = [_stand_in(node, sizes) for node in part.inputs]
    tensors = [i for i, arg in enumerate(inputs) if isinstance(arg, torch.Tensor)]

    def captured(assumed: Mapping[int, int], symbolic: bool = True) -> tuple[Capture, Counts]:
        counts = Counts(assumed, sizes)
        with counting(counts):
            return capturing(part.module, list(inputs), counts, symbolic), counts

    asserted = graph.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    if not all(_holds(node, sizes) for node in asserted):
        raise NotOneRecord("it says more of a count than that there are so many elements")
    try:
        bound, counts = captured({})
    except RuntimeError as error:  # an assertion of the graph fails for some counts
        raise NotOneRecord(f"{error}") from error
    if not 0 < len(counts.bounds) <= len(NAMES) or min(counts.bounds) < MIN_SYMBOL:
        raise NotOneRecord(f"it has {len(counts.bounds)} counts, or one of a single element")
    names = NAMES[: len(counts.bounds)]

    def at(fixed: Mapping[str, int]) -> tuple[Subtrace, Sequence[Record]]:
        assumed = {names.index(name): size for name, size in fixed.items()}
        try:
            recaptured, new_counts = captured(assumed, len(fixed) < len(names)) if fixed else (bound, counts)
            function = _subtrace(recaptured, inputs, tensors)
        except NotOneRecord as error:
            raise ValueError(f"{error}") from error
        if len(new_counts.bounds) != len(names) or _kinds(recaptured) != _kinds(bound):
            raise ValueError("it returns something else at few counts")
        return function, recaptured.records if recaptured.expressed is None else recaptured.expressed.records

    try:
        body = activation.engine().counted(dict(zip(names, counts.bounds, strict=True)), at)
    except ValueError as error:
        raise NotOneRecord(f"{error}") from error
    results = bound.results[: len(bound.results) - len(names)]
    for node, result in zip(part.outputs, results, strict=True):
        given = isinstance(result, Static) or (isinstance(result, Fresh) and result.view is not None)
        if given and has_symbols(node.meta.get("val"), sizes.keys()):
            raise NotOneRecord("it returns a number, or a view of a size, that depends on a count")
    return calling(graph, part, lambda new, arguments: _call(new, arguments, body, tensors, bound, results))


def _kinds(captured: Capture) -> Any:
    """Return the properties of the results that must be equal at all counts: kinds, aliases and views."""
    order = {slot: number for number, slot in enumerate(dict.fromkeys(r.slot for r in _fresh(captured)))}
    return [(order[r.slot], r.view) if isinstance(r, Fresh) else r for r in captured.results]


def _fresh(captured: Capture) -> list[Fresh]:
    return [result for result in captured.results if isinstance(result, Fresh)]


def _holds(asserted: fx.Node, sizes: Mapping[Any, int]) -> bool:
    """Return whether an assertion on counts holds for all counts, or fails only where a capture detects it: at the
    greatest counts, or at counts below MIN_SYMBOL."""
    condition = asserted.args[0]
    if not isinstance(condition, fx.Node):
        return False  # torch has replaced a count by the size that it must equal
    value = condition.meta.get("val")
    return isinstance(value, torch.SymBool) and _is_detected(value.node.expr.xreplace(sizes))


def _is_detected(condition: Any) -> bool:
    """Return the same for a comparison of sums and products of counts, or for several."""
    if condition.func.__name__ == "And":
        return all(map(_is_detected, condition.args))
    if not condition.free_symbols:
        return bool(condition)
    if not condition.is_Relational:
        return False
    difference, counts = (condition.lhs - condition.rhs).expand(), sorted(condition.free_symbols, key=str)
    factors = [factor for term, factor in difference.as_coefficients_dict().items() if not term.is_Number]
    if not difference.is_polynomial(*counts) or not all(factor * factors[0] > 0 for factor in factors):
        return False
    grows = bool(factors) and factors[0] > 0
    if condition.func.__name__ in (("LessThan", "StrictLessThan") if grows else ("GreaterThan", "StrictGreaterThan")):
        return True
    # If it holds where a count is MIN_SYMBOL and the others are at most that, it holds for greater counts.
    values = product(range(MIN_SYMBOL + 1), repeat=len(counts))
    beside = [dict(zip(counts, at, strict=True)) for at in values if MIN_SYMBOL in at]
    if condition.func.__name__ == "Unequality":
        return all((difference.xreplace(at) > 0) == grows and difference.xreplace(at) != 0 for at in beside)
    return condition.func.__name__ != "Equality" and all(bool(condition.xreplace(at)) for at in beside)


def _stand_in(node: fx.Node, sizes: Mapping[Any, int]) -> Any:
    """Return an argument of the part: a number, or a tensor in its own storage, with unknown contents."""

    def number(size: Any) -> int:
        return int(size.node.expr.xreplace(sizes) if isinstance(size, torch.SymInt) else size)

    value = node.meta.get("val")
    if isinstance(value, int | torch.SymInt):
        return number(value)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.device.type != "tpu":
        raise NotOneRecord("it counts, and takes an argument that is no tensor of the device")
    shape, stride = tuple(map(number, value.shape)), tuple(map(number, value.stride()))
    kind = layout(value.dtype, shape, stride if is_dense(shape, stride) else row_major(shape))
    return wrap(resident(kind, Placeholder()))


def _subtrace(captured: Capture, args: Sequence[Any], tensors: Sequence[int]) -> Subtrace:
    if captured.written or captured.draws or captured.given or captured.uploads:
        raise NotOneRecord("it counts, and writes to its arguments, draws random numbers, or has constants of its own")
    if not all(isinstance(r, Static | Fresh) or (isinstance(r, Input) and r.view is None) for r in captured.results):
        raise NotOneRecord("it counts, and returns a view of an argument, or memory that nothing has written")
    slots = [result.slot for result in captured.results if isinstance(result, Fresh)]
    if any(slot not in captured.values for slot in slots):
        raise NotOneRecord("it counts, and returns a view of an argument")
    inputs = {slot: tensors.index(index) for slot, index in captured.inputs.items()}
    arguments = tuple([layout(args[i].dtype, tuple(args[i].shape), args[i].stride()) for i in tensors])
    outs = tuple([captured.values[slot] for slot in slots])
    results = tuple([Operand(slot, None) for slot in slots])
    return Subtrace(arguments, captured.records, inputs, captured.numbers, 0, results, outs)


def _call(
    new: fx.Graph,
    inputs: list[fx.Node],
    body: str,
    tensors: Sequence[int],
    captured: Capture,
    results: Sequence[Result],
) -> list[Any]:
    """Add a call of the function `body` to a graph, and return its results."""
    call = new.call_function(OPS.counted.default, ([inputs[i] for i in tensors], body))
    values: list[Any] = []
    fresh = 0
    for result in results:
        match result:
            case Static(value):
                values.append(value)
            case Input(index, _):
                values.append(inputs[index])
            case Fresh(slot, view):
                item = new.call_function(operator.getitem, (call, fresh))
                fresh += 1
                if view is not None:
                    size, stride, offset, dtype = view
                    if dtype is not captured.values[slot].dtype:
                        raise NotOneRecord("it counts, and returns a view of another dtype")
                    item = new.call_function(torch.ops.aten.as_strided.default, (item, size, stride, offset))
                values.append(item)
            case _:
                raise NotOneRecord("it counts, and returns a result that is no tensor")
    return values
