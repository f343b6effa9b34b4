"""What Dynamo makes symbolic, or traces again, and is a program for each value all the same, as sizes are without
buckets: it is said once for a function, in `lazytpu.explain()`, and where the user asked for varying sizes also as a
warning.
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
    """A function compiled for sizes that vary is compiled again for each, as `options.buckets` is off."""


_sizes_told: set[SourceLine] = set()  # bounded by the program's source, as the next
_floats_told: set[tuple[SourceLine, str]] = set()


@dataclass(slots=True)
class VaryingSizes:
    """The sizes that vary of a graph of a function whose first op is at `line`.

    `places` are (argument, dim, name in the user's terms). `asked` says whether the user asked for such a graph; else
    Dynamo made it, since it had met two sizes. `seen` are the sizes of the first call.
    """

    line: SourceLine
    places: tuple[tuple[int, int, str], ...]
    asked: bool
    seen: tuple[int, ...] = ()

    def note(self, args: Sequence[Any]) -> None:
        """A program is made for these arguments; tell if it is not the first."""
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
    """The sizes of a graph's arguments that vary; None when all are fixed."""
    places: dict[Any, tuple[int, int, str]] = {}
    for index, node in enumerate(n for n in graph.graph.nodes if n.op == "placeholder"):
        value = node.meta.get("val")
        for dim, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                places.setdefault(size.node.expr, (index, dim, _name(size.node)))
    line = function_of(graph) if places else None
    return None if line is None else VaryingSizes(line, tuple(places.values()), asked)


def asked_for(inputs: Sequence[Any]) -> bool:
    """Whether the user wants the graph that is being compiled for all sizes: by `dynamic=True` or `mark_dynamic`."""
    return not assumes_static_sizes() or any(getattr(t, "_dynamo_dynamic_indices", None) for t in inputs)


def note_floats(graph: fx.GraphModule) -> None:
    """Tell of the Python floats that Dynamo could not make arguments of the graph that it gives to be compiled."""
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
