"""Trie edges as Python expressions over sizes: the key, the layouts of the results, and the record.

`read` splits edges into structure and integers, as `skeletons` does with records. `Writer` writes the Python expression
of an edge of the same structure whose integers are size expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lazytpu.engine.sizes.dense import dense_order
from lazytpu.engine.sizes.skeletons import (
    STRUCTURE,
    Integers,
    Skeleton,
    layout_apart,
    strided,
    take_apart,
)
from lazytpu.ir.forms import Form, form
from lazytpu.trace.trie import Operand, Record, State
from lazytpu.trace.value import Layout

Key = tuple[Any, ...]


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
    skeletons, into = list[Skeleton](), Integers([], [])
    starts, keys, records = list[int](), list[int](), list[int]()
    for state in states:
        (record,) = state.recorded
        starts.append(len(into.values))
        key = None if state.key is None else read_key(state.key, into)
        keys.append(len(into.values))
        outs = _read_outs(state.outs, into)
        records.append(len(into.values))
        skeletons.append((key, outs, take_apart(record, into)))
    return Reading(tuple(skeletons), into, starts, keys, records)


def read_key(key: Key, into: Integers) -> Skeleton:
    """Return the structure of a key and append its integers to `into`."""
    return tuple([_read_token(token, into) for token in key])


def _read_token(token: Any, into: Integers) -> Any:
    """Return the structure of one element of a key and append its integers to `into`."""
    if type(token) is int:
        into.add((token,))
        return int
    if not isinstance(token, tuple):
        return type(token), token
    items = cast("tuple[Any, ...]", token)
    at = _strided_at(items)
    if at is None:
        return tuple([_read_token(item, into) for item in items])
    before, after = items[:at], items[at + 2 :]
    return (
        tuple([_read_token(item, into) for item in before]),
        strided(tuple(items[at]), tuple(items[at + 1]), into),
        tuple([_read_token(item, into) for item in after]),
    )


def _strided_at(token: tuple[Any, ...]) -> int | None:
    """Return the index in a token at which a size and its strides stand, or None.

    Three tokens have them: the key of a layout, of empty memory, and of a view.
    """
    for at, length in ((1, 3), (2, 4), (1, 5)):
        if len(token) == length:
            size, stride = token[at], token[at + 1]
            if isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride):
                return at if all(type(n) is int for n in (*size, *stride)) else None
    return None


def _read_outs(outs: Any, into: Integers) -> Any:
    """Return the structure of the results of an edge and append their integers to `into`."""
    if isinstance(outs, Layout):
        return layout_apart(outs, into)
    if isinstance(outs, tuple):
        return tuple([_read_outs(out, into) for out in cast("tuple[Any, ...]", outs)])
    return _read_token(outs, into)


class Writer:
    """Write edges as Python source.

    In the source, `f` is the tuple of values of `forms`, `c` the tuple of `constants`, and `layout` constructs a
    Layout. `sizes` are the expressions that are tensor sizes.
    """

    def __init__(self) -> None:
        self.constants: list[Any] = []
        self.forms: dict[Form, int] = {}
        self.sizes: set[Form] = set()

    def edge(self, state: State, forms: Iterator[Form]) -> str:
        """Return the source of the tuple (key, outs, record) of the edge to a state of the same structure. `forms` are
        its integers as size expressions, in the order of `read`."""
        (record,) = state.recorded
        assert state.key is not None
        key = _tuple([self._token(token, forms) for token in state.key])
        return _tuple([key, self._outs(state.outs, forms), self._record(record, forms)])

    def key(self, key: Key, forms: Iterator[Form]) -> str:
        """Return the source of a key."""
        return _tuple([self._token(token, forms) for token in key])

    def _constant(self, value: Any) -> str:
        """Return source that refers to a constant."""
        self.constants.append(value)
        return f"c[{len(self.constants) - 1}]"

    def _integer(self, size: Form) -> str:
        """Return source for the value of a size expression."""
        number = size.number
        return str(number) if number is not None else f"f[{self.forms.setdefault(size, len(self.forms))}]"

    def _strided(self, size: Sequence[int], stride: Sequence[int], forms: Iterator[Form]) -> tuple[str, str]:
        """Return the sources of a size and of its strides. Dense strides are computed from the size."""
        order, sizes = dense_order(size, stride), [next(forms) for _ in size]
        self.sizes.update(s for s in sizes if s.number is None)
        if order is None:
            strides = [next(forms) for _ in size]
        else:
            strides, step = [form(0)] * len(sizes), form(1)
            for dim in reversed(order):
                strides[dim] = step
                step = step * (sizes[dim] if sizes[dim].number != 0 else 1)
        return _tuple(map(self._integer, sizes)), _tuple(map(self._integer, strides))

    def _token(self, token: Any, forms: Iterator[Form]) -> str:
        if type(token) is int:
            return self._integer(next(forms))
        if not isinstance(token, tuple):
            return self._constant(token)
        items = cast("tuple[Any, ...]", token)
        at = _strided_at(items)
        if at is None:
            return _tuple([self._token(item, forms) for item in items])
        before = [self._token(item, forms) for item in items[:at]]
        size_stride = self._strided(items[at], items[at + 1], forms)
        return _tuple([*before, *size_stride, *[self._token(item, forms) for item in items[at + 2 :]]])

    def _outs(self, outs: Any, forms: Iterator[Form]) -> str:
        if isinstance(outs, Layout):
            return self._layout(outs, forms)
        if isinstance(outs, tuple):
            return _tuple([self._outs(out, forms) for out in cast("tuple[Any, ...]", outs)])
        return self._token(outs, forms)

    def _layout(self, layout: Layout, forms: Iterator[Form]) -> str:
        size, stride = self._strided(layout.shape, layout.stride, forms)
        if "f[" not in size + stride:
            return self._constant(layout)
        return f"layout({self._constant(layout.dtype)}, {size}, {stride})"

    def _record(self, record: Record, forms: Iterator[Form]) -> str:
        admitted = [
            _tuple([str(slot), self._layout(layout, forms), str(empty)]) for slot, layout, empty in record.admitted
        ]
        arguments = {
            name: self._constant(value) if name in STRUCTURE else self._argument(value, forms)
            for name, value in record.arguments.items()
        }
        outs = [self._constant(None) if out is None else self._layout(out, forms) for out in record.outs]
        if not any("f[" in text for text in (*arguments.values(), *outs, *admitted)):
            return self._constant(record)
        named = ", ".join(f"{name!r}: {text}" for name, text in arguments.items())
        return f"record({self._constant(record)}, {{{named}}}, {_tuple(outs)}, {_tuple(admitted)})"

    def _argument(self, value: Any, forms: Iterator[Form]) -> str:
        if type(value) is int:
            return self._integer(next(forms))
        if isinstance(value, Operand) and value.view is not None:
            size, stride, _, dtype = value.view
            size_stride = self._strided(size, stride, forms)
            view = _tuple([*size_stride, self._integer(next(forms)), self._constant(dtype)])
            return f"operand({value.slot}, {view})" if "f[" in view else self._constant(value)
        if isinstance(value, list | tuple):
            items = [self._argument(v, forms) for v in cast("Sequence[Any]", value)]
            return f"[{', '.join(items)}]" if isinstance(value, list) else _tuple(items)
        return self._constant(value)


def expression(size: Form) -> str:
    """Return a size expression as Python source over the names of its symbols."""
    terms: list[str] = []
    for atoms, factor in size.terms:
        factors = [str(a) if isinstance(a, str) else f"(({expression(a.form)}) // {a.by})" for a in atoms]
        terms.append(" * ".join([f"({factor})", *factors]))
    return " + ".join(terms) or "0"


def _tuple(parts: Any) -> str:
    """Return the source of a tuple of these sources."""
    listed = list(parts)
    return f"({', '.join(listed)},)" if listed else "()"
