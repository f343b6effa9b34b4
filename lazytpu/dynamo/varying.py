"""Notes about values that Dynamo makes symbolic, or traces again, and that need a program per value all the same: sizes
without buckets, and some floats.

Each is noted once per function in `lazytpu.explain()`. If the user requested dynamic sizes, it is also a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from lazytpu.dynamo.breaks import note
from lazytpu.dynamo.node_lines import function_of
from lazytpu.frontend.lines import SourceLine
from lazytpu.frontend.torch_private import assumes_static_sizes, readable_source, specialized_floats
from lazytpu.options import options


class SizeWarning(UserWarning):
    """A function compiled for dynamic sizes is compiled again for each size, since `options.buckets` is off."""


_sizes_told: set[SourceLine] = set()  # bounded by the program's source code, like the next one
_floats_told: set[tuple[SourceLine, str]] = set()


@dataclass(slots=True)
class VaryingSizes:
    """The dynamic sizes of a graph of a function whose first op is at `line`.

    - `places`: (argument, dimension, name in the user's terms).
    - `asked`: whether the user requested a dynamic graph; else Dynamo made it dynamic after two different sizes.
    - `seen`: the sizes of the first call.
    """

    line: SourceLine
    places: tuple[tuple[int, int, str], ...]
    asked: bool
    seen: tuple[int, ...] = ()

    def note(self, args: Sequence[Any]) -> None:
        """Note the sizes of a new program; other sizes than the first ones are reported."""
        sizes = tuple([int(args[index].shape[dim]) for index, dim, _ in self.places])
        if not self.seen:
            self.seen = sizes
        if sizes == self.seen or self.line in _sizes_told or options.buckets != "off":
            return
        _sizes_told.add(self.line)
        places = zip(self.places, self.seen, sizes, strict=True)
        changed = ", ".join(f"{name} was {a} and is {b}" for (_, _, name), a, b in places if a != b)
        text = (
            f"{self.line.function} is traced once for all sizes, but each size is a program of its own: {changed}. Few "
            'sizes need nothing; for many, set lazytpu.options.buckets to "auto", or pad to a few of them'
        )
        note("sizes that vary", text, self.line)
        if self.asked:
            warnings.warn_explicit(text, SizeWarning, self.line.file, self.line.line)


def varying_sizes(graph: fx.GraphModule, asked: bool) -> VaryingSizes | None:
    """Return the dynamic sizes of a graph's arguments; None if all are fixed."""
    places: dict[Any, tuple[int, int, str]] = {}
    for index, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder"):
        value = node.meta.get("val")
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                places.setdefault(size.node.expr, (index, dim, _name(size.node)))
    line = function_of(graph) if places else None
    return None if line is None else VaryingSizes(line, tuple(places.values()), asked)


def asked_for(inputs: Sequence[Any]) -> bool:
    """Return whether the user requested a dynamic graph, by `dynamic=True` or `mark_dynamic`."""
    return not assumes_static_sizes() or any(getattr(t, "_dynamo_dynamic_indices", None) for t in inputs)


def note_floats(graph: fx.GraphModule) -> None:
    """Note the Python floats that Dynamo could not turn into arguments of the graph being compiled."""
    line = function_of(graph)
    if line is None:
        return
    for name in specialized_floats():
        if (line, name) not in _floats_told:
            _floats_told.add((line, name))
            text = (
                f"{line.function} is traced again for each value of {name}, since an op takes it that wants a fixed "
                "number, and runs uncompiled after a few. To make it a run-time number, use it in + - * / and "
                "comparisons only (x + y * a, not alpha=a), or give a tensor where the op takes one"
            )
            note("a number that varies", text, line)


def _name(node: Any) -> str:
    sources = node.shape_env.var_to_sources.get(node.expr)
    return readable_source(sources[0].name) if sources else str(node.expr)
