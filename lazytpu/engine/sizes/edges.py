"""Trie edges as Python expressions over sizes: the key, the layouts of the results, and the record.

`read` splits edges into structure and integers, `at_sizes` rebuilds them with symbolic sizes as integers, and `Source`
writes these as Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lazytpu.engine.sizes.skeletons import Apart, Integers, Skeleton, Together
from lazytpu.ir.forms import Form
from lazytpu.ir.symbolic import Size
from lazytpu.trace.trie import Operand, Record, State
from lazytpu.trace.value import Layout

Key = tuple[Any, ...]
Edge = tuple[Key | None, Any, Record]
"""The key of an edge, the layouts of its results, and its record."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Consecutive trie edges split into their hashable `skeletons` and their integers.

    For each edge, its integers begin at the position in `starts`, its key's integers end at `keys`, and its record's
    integers begin at `records`.
    """

    skeletons: tuple[Skeleton, ...]
    integers: Integers
    starts: list[int]
    keys: list[int]
    records: list[int]


def read(states: Sequence[State]) -> Reading:
    """Split the edges into these states, each of one record, into structures and integers."""
    walk, skeletons = Apart(into := Integers([], [])), list[Skeleton]()
    starts, keys, records = list[int](), list[int](), list[int]()
    for state in states:
        (record,) = state.recorded
        starts.append(len(into.values))
        walk.key(state.key)
        keys.append(len(into.values))
        walk.token(state.outs)
        records.append(len(into.values))
        walk.record(record)
        skeletons.append(walk.structure())
    return Reading(tuple(skeletons), into, starts, keys, records)


def read_key(key: Key) -> list[int]:
    """Return the integers of a key."""
    Apart(into := Integers([], [])).key(key)
    return into.values


def at_sizes(states: Sequence[State], sizes: Iterator[Any]) -> list[Edge]:
    """Return the edges into these states with symbolic sizes as their integers, in the order of `read`."""
    walk = Together(sizes)
    return [(walk.key(s.key), walk.token(s.outs), walk.record(*s.recorded)) for s in states]


class Source:
    """Writes values with symbolic sizes as Python source.

    In the source, `f` is the tuple of values of `forms`, `c` the tuple of `constants`, and `layout` constructs a
    Layout.
    """

    def __init__(self) -> None:
        self.constants: list[Any] = []
        self.forms: dict[Form, int] = {}

    def edge(self, edge: Edge, state: State) -> str:
        """Return the source of an edge like the one to `state`."""
        key, outs, new = edge
        (record,) = state.recorded
        parts = [self.of(value) for value in (new.arguments, new.outs, new.admitted)]
        copy = f"record({self._constant(record)}, {', '.join(parts)})" if _varies(parts) else self._constant(record)
        return f"({self.of(key)}, {self.of(outs)}, {copy})"

    def of(self, value: Any) -> str:
        """Return the source of a value; one without sizes is a constant."""
        if type(value) is int:
            return str(value)
        if type(value) is Size:
            return f"f[{self.forms.setdefault(value.form, len(self.forms))}]"
        if isinstance(value, Layout):
            parts = [self.of(part) for part in (value.dtype, value.shape, value.stride)]
            text = f"layout({', '.join(parts)})"
        elif isinstance(value, Operand):
            parts = [self.of(value.view)]
            text = f"operand({value.slot}, {parts[0]})"
        elif isinstance(value, dict):
            parts = [f"{name!r}: {self.of(item)}" for name, item in cast("dict[str, Any]", value).items()]
            text = f"{{{', '.join(parts)}}}"
        elif isinstance(value, list | tuple):
            parts = [self.of(item) for item in cast("Sequence[Any]", value)]
            text = f"[{', '.join(parts)}]" if isinstance(value, list) else f"({', '.join(parts)},)"
        else:
            return self._constant(value)
        return text if _varies(parts) else self._constant(value)

    def _constant(self, value: Any) -> str:
        """Return source that refers to a constant."""
        self.constants.append(value)
        return f"c[{len(self.constants) - 1}]"


def _varies(parts: Sequence[str]) -> bool:
    return any("f[" in part for part in parts)


def expression(size: Form) -> str:
    """Return a size expression as Python source over the names of its symbols."""
    terms: list[str] = []
    for atoms, factor in size.terms:
        factors = [str(a) if isinstance(a, str) else f"(({expression(a.form)}) // {a.by})" for a in atoms]
        terms.append(" * ".join([f"({factor})", *factors]))
    return " + ".join(terms) or "0"
