"""A graph that Dynamo made symbolic, at sizes that nobody has shown yet: what its records are there.

Its placeholders say which sizes of its arguments are forms of the same symbols. So its arguments can be made at other
sizes, without memory, and its records found there as they are for those of a call (`capture`). The engine makes the
first program of such a graph one for many sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from lazytpu.dynamo.placeholders import Placeholder
from lazytpu.dynamo.results import Capture
from lazytpu.frontend.recording.tensors import is_natural, layout, value_of, wrap
from lazytpu.trace.value import EMPTY, resident
from lazytpu.trace.ways import WAYS

Capturing = Callable[[list[Any]], Capture]
"Captures the graph for arguments."


def elsewhere(graph: fx.GraphModule, args: Sequence[Any], here: Capture, capturing: Capturing) -> Sequence[Capture]:
    """The captures of a graph at other sizes than those of `args`, whose capture is `here`. Empty where its sizes are
    fixed, or an argument is a part of a larger tensor, or the graph cannot be at those sizes."""
    values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder"]
    symbols = _symbols(values, args)
    if not symbols:
        return ()
    for way in WAYS:
        try:
            found = [capturing(_arguments(values, args, {s: at(n) for s, n in symbols.items()})) for at in way]
        except Exception:  # noqa: BLE001  (whatever the graph's ops raise where they cannot have these sizes)
            continue
        if all(_is_same(here, other) for other in found):
            return found
    return ()


def _symbols(values: Sequence[Any], args: Sequence[Any]) -> dict[Any, int]:
    """The symbols of a graph with their sizes in a call; empty if one of them is no size of an argument."""
    symbols: dict[Any, int] = {}
    wanted: set[Any] = set()
    for value, arg in zip(values, args, strict=False):
        for symbolic, size in _sizes(value, arg):
            if isinstance(symbolic, torch.SymInt):
                wanted |= symbolic.node.expr.free_symbols
                if symbolic.node.expr.is_Symbol:
                    symbols[symbolic.node.expr] = int(size)
    return symbols if wanted == set(symbols) and min(symbols.values(), default=0) > 1 else {}


def _sizes(value: Any, arg: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, torch.SymInt):
        yield value, arg
    elif isinstance(value, torch.Tensor) and isinstance(arg, torch.Tensor):
        yield from zip(value.shape, arg.shape, strict=True)


def _arguments(values: Sequence[Any], args: Sequence[Any], sizes: Mapping[Any, int]) -> list[Any]:
    """The arguments of a graph at these sizes of its symbols. Raises ValueError for one that is part of a tensor."""
    made: dict[int, torch.Tensor] = {}
    return [
        _at(value, arg, sizes, made) if index < len(values) else arg
        for index, (value, arg) in enumerate(zip([*values, *args[len(values) :]], args, strict=True))
    ]


def _at(value: Any, arg: Any, sizes: Mapping[Any, int], made: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, torch.SymInt):
        return _number(value, sizes)
    if not isinstance(value, torch.Tensor) or not any(isinstance(n, torch.SymInt) for n in value.shape):
        return arg
    own = value_of(arg)
    if not is_natural(arg, own.layout):
        raise ValueError("part of a tensor of which no size is known elsewhere")
    if id(own) not in made:
        shape, stride = ([_number(n, sizes) for n in numbers] for numbers in (value.shape, value.stride()))
        kind = layout(own.layout.dtype, tuple(shape), tuple(stride))
        made[id(own)] = wrap(resident(kind, EMPTY if own.buffer is EMPTY else Placeholder()))
    return made[id(own)]


def _number(value: Any, sizes: Mapping[Any, int]) -> int:
    return int(value.node.expr.subs(sizes)) if isinstance(value, torch.SymInt) else value


def _is_same(one: Capture, other: Capture) -> bool:
    """Whether two captures are the same but for sizes."""
    return (one.inputs, one.written, one.slots, one.draws, one.given, [record.op for record in one.records]) == (
        (other.inputs, other.written, other.slots, other.draws, other.given, [record.op for record in other.records])
    )
