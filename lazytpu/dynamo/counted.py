"""Graphs with data-dependent sizes, such as `x[mask]`: one record, without reading a count.

1. The graph is captured at assumed counts (`capture`).
2. The engine builds a function from these records that counts on the device.
3. That function becomes the single op of another graph, which is captured in place of the original.

A graph that returns a tensor of a counted size is recorded op by op, and its count is read: torch must know the size.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import fx

from lazytpu.dynamo.placeholders import NotOneRecord, Placeholder
from lazytpu.dynamo.results import Capture, Fresh, Input, Static
from lazytpu.frontend import activation
from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.ops.counts import Counts, counting
from lazytpu.frontend.tensors import is_dense, layout, wrap
from lazytpu.trace.subtraces import SUBTRACES, Subtrace
from lazytpu.trace.trie import Operand
from lazytpu.trace.value import resident, row_major

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("counted(Tensor[] inputs, str body) -> Tensor[]")
OPS: Any = torch.ops.lazytpu
NAMES = ("n", "m", "k")
"The names of a graph's counts, and so their maximum number."


@override("lazytpu.counted.default")
def _like_function(inputs: list[torch.Tensor], body: str) -> list[torch.Tensor]:
    outs = SUBTRACES[body].outs
    return [torch.empty_strided(out.shape, out.stride, dtype=out.dtype, device="meta") for out in outs]


def has_counts(graph: fx.GraphModule) -> bool:
    """Return whether a graph has data-dependent sizes."""
    return any(n.meta.get("unbacked_bindings") for n in graph.graph.nodes)


Capturing = Callable[[list[Any], Counts], Capture]
"A function that captures the graph for arguments at assumed counts."


def counted(graph: fx.GraphModule, args: Sequence[Any], capturing: Capturing) -> fx.GraphModule:
    """Return a graph of the same arguments that counts on the device. Raises NotOneRecord if it is impossible."""
    tensors = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor) and arg.device.type == "tpu"]
    placeholders = [_alone(arg) if i in tensors else arg for i, arg in enumerate(args)]

    def captured(assumed: Mapping[int, int]) -> tuple[Capture, Counts]:
        counts = Counts(assumed)
        with counting(counts):
            return capturing(list(placeholders), counts), counts

    if not all(map(_holds, graph.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default))):
        raise NotOneRecord("it says more of a count than that there are so many elements")
    try:
        bound, counts = captured({})
    except RuntimeError as error:  # an assertion of the graph does not hold for all counts
        raise NotOneRecord(f"{error}") from error
    if not 0 < len(counts.bounds) <= len(NAMES) or min(counts.bounds) < 2:
        raise NotOneRecord(f"it has {len(counts.bounds)} counts, or one of a single element")
    names = NAMES[: len(counts.bounds)]

    def function(sizes: Mapping[str, int]) -> Subtrace:
        recaptured, new_counts = captured(dict(enumerate(sizes.values())))
        if len(new_counts.bounds) != len(names) or _kinds(recaptured) != _kinds(bound):
            raise ValueError("it is another graph at other counts")
        return _subtrace(recaptured, placeholders, tensors)

    try:
        body = activation.engine().counted(dict(zip(names, counts.bounds, strict=True)), function)
    except ValueError as error:
        raise NotOneRecord(f"{error}") from error
    return _calling(graph, bound, body, len(args), tensors, len(names))


MAX_TRIED = 2
"The engine tries the counts up to this one by one, so an assertion that fails for them is detected there."


def _holds(asserted: fx.Node) -> bool:
    """Return whether an assertion on counts holds for all counts, or fails only where it is detected: at the greatest
    count, or at counts up to MAX_TRIED."""
    condition = asserted.args[0]
    if not isinstance(condition, fx.Node):
        return True
    value = condition.meta.get("val")
    return isinstance(value, torch.SymBool) and _is_seen(value.node.expr)


def _is_seen(condition: Any) -> bool:
    """Do the same for a comparison of polynomials in the counts, or a conjunction of comparisons."""
    if condition.func.__name__ == "And":
        return all(map(_is_seen, condition.args))
    if not condition.is_Relational:
        return False
    difference, counts = (condition.lhs - condition.rhs).expand(), sorted(condition.free_symbols, key=str)
    factors = [factor for term, factor in difference.as_coefficients_dict().items() if not term.is_Number]
    if not difference.is_polynomial(*counts) or not all(factor * factors[0] > 0 for factor in factors):
        return False
    grows = bool(factors) and factors[0] > 0
    if condition.func.__name__ in (("LessThan", "StrictLessThan") if grows else ("GreaterThan", "StrictGreaterThan")):
        return True
    # If some count exceeds MAX_TRIED, the comparison must hold there; being monotonic, it then holds for greater
    # counts.
    tried = product(range(MAX_TRIED + 1), repeat=len(counts))
    beside = [dict(zip(counts, at, strict=True)) for at in tried if MAX_TRIED in at]
    if condition.func.__name__ == "Unequality":
        return all((difference.xreplace(at) > 0) == grows and difference.xreplace(at) != 0 for at in beside)
    return condition.func.__name__ != "Equality" and all(bool(condition.xreplace(at)) for at in beside)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a placeholder tensor of the same shape in its own storage, with unknown contents."""
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    kind = layout(tensor.dtype, shape, stride if is_dense(shape, stride) else row_major(shape))
    return wrap(resident(kind, Placeholder()))


COPIES = frozenset((torch.ops.aten.copy_.default, torch.ops.aten.clone.default))
"Ops that are recorded only where there is something to copy."


def _kinds(captured: Capture) -> Any:
    """Return the properties of a capture that must be equal at all counts: ops, numbers, and kinds of results."""
    results = [result if isinstance(result, Static | Input) else type(result) for result in captured.results]
    return [record.op for record in captured.records if record.op not in COPIES], captured.numbers, results


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


def _calling(
    graph: fx.GraphModule, captured: Capture, body: str, count: int, tensors: Sequence[int], totals: int
) -> fx.GraphModule:
    """Return a graph that calls the function `body`, and returns the results of `captured` without its `totals`."""
    caller = fx.Graph()
    arguments = [caller.placeholder(f"x{i}") for i in range(count)]
    call = caller.call_function(OPS.counted.default, ([arguments[i] for i in tensors], body))
    lines = [n.meta for n in graph.graph.nodes if n.meta.get("unbacked_bindings")]
    results: list[Any] = []
    taken = 0
    for result in captured.results[: len(captured.results) - totals]:
        match result:
            case Static(value):
                results.append(value)
            case Input(index, _):
                results.append(arguments[index])
            case Fresh(slot, view):
                item = caller.call_function(operator.getitem, (call, taken))
                taken += 1
                if view is not None:
                    size, stride, offset, dtype = view
                    if dtype is not captured.values[slot].dtype:
                        raise NotOneRecord("it counts, and returns a view of another dtype")
                    item = caller.call_function(torch.ops.aten.as_strided.default, (item, size, stride, offset))
                results.append(item)
            case _:
                raise NotOneRecord("it counts, and returns a result that is no tensor")
    caller.output(tuple(results))
    for node in caller.nodes:
        if node.op == "call_function" and lines and "stack_trace" in lines[0]:
            node.meta["stack_trace"] = lines[0]["stack_trace"]
    return fx.GraphModule({}, caller)
