"""Edges of the trie as Python expressions over sizes: the key, the layouts of the results, and the record.

`read` takes edges apart into skeletons and integers, as `skeletons` does records. `Writer` writes the expression of an
edge of the same skeleton whose integers are forms of sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lazytpu.engine.sizes.skeletons import (
    STRUCTURE,
    Integers,
    Skeleton,
    dense_order,
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
    """The edges that lead to states in a row: their `skeletons`, hashable, and their integers. Where those of each edge
    begin say `starts`; the ones of its key end at `keys`, and those of its record begin at `records`."""

    skeletons: tuple[Skeleton, ...]
    integers: Integers
    starts: list[int]
    keys: list[int]
    records: list[int]


def read(states: Sequence[State]) -> Reading:
    """Take the edges to these states apart, each of one record."""
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
    """The same of a key alone."""
    return tuple([_read_token(token, into) for token in key])


def _read_token(token: Any, into: Integers) -> Any:
    if type(token) is int:
        into.add((token,))
        return int
    if not isinstance(token, tuple):
        return type(token), token
    parts = cast("tuple[Any, ...]", token)
    at = _strided_at(parts)
    if at is None:
        return tuple([_read_token(part, into) for part in parts])
    before, after = parts[:at], parts[at + 2 :]
    return (
        tuple([_read_token(part, into) for part in before]),
        strided(tuple(parts[at]), tuple(parts[at + 1]), into),
        tuple([_read_token(part, into) for part in after]),
    )


def _strided_at(token: tuple[Any, ...]) -> int | None:
    """Where in a token a size and its strides are: in the key of a layout, that of empty memory, or a view's."""
    for at, length in ((1, 3), (2, 4), (1, 5)):
        if len(token) == length:
            size, stride = token[at], token[at + 1]
            if isinstance(size, tuple) and isinstance(stride, tuple) and len(size) == len(stride):
                return at if all(type(n) is int for n in (*size, *stride)) else None
    return None


def _read_outs(outs: Any, into: Integers) -> Any:
    if isinstance(outs, Layout):
        return layout_apart(outs, into)
    if isinstance(outs, tuple):
        return tuple([_read_outs(out, into) for out in cast("tuple[Any, ...]", outs)])
    return _read_token(outs, into)


class Writer:
    """Writes expressions. In these, `f` are the numbers of the `forms` at some sizes, `c` the `constants`, and `layout`
    makes a Layout. `sizes` are the forms of what are sizes of tensors."""

    def __init__(self) -> None:
        self.constants: list[Any] = []
        self.forms: dict[Form, int] = {}
        self.sizes: set[Form] = set()

    def edge(self, state: State, forms: Iterator[Form]) -> str:
        """The expression of (key, outs, record) of the edge to a state of the same skeleton, whose integers are
        `forms` in the order of `read`."""
        (record,) = state.recorded
        assert state.key is not None
        key = _tuple([self._token(token, forms) for token in state.key])
        return _tuple([key, self._outs(state.outs, forms), self._record(record, forms)])

    def key(self, key: Key, forms: Iterator[Form]) -> str:
        """That of a key alone."""
        return _tuple([self._token(token, forms) for token in key])

    def _constant(self, value: Any) -> str:
        self.constants.append(value)
        return f"c[{len(self.constants) - 1}]"

    def _integer(self, size: Form) -> str:
        number = size.number
        return str(number) if number is not None else f"f[{self.forms.setdefault(size, len(self.forms))}]"

    def _strided(self, size: Sequence[int], stride: Sequence[int], forms: Iterator[Form]) -> tuple[str, str]:
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
        parts = cast("tuple[Any, ...]", token)
        at = _strided_at(parts)
        if at is None:
            return _tuple([self._token(part, forms) for part in parts])
        before = [self._token(part, forms) for part in parts[:at]]
        both = self._strided(parts[at], parts[at + 1], forms)
        return _tuple([*before, *both, *[self._token(part, forms) for part in parts[at + 2 :]]])

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
            both = self._strided(size, stride, forms)
            view = _tuple([*both, self._integer(next(forms)), self._constant(dtype)])
            return f"operand({value.slot}, {view})" if "f[" in view else self._constant(value)
        if isinstance(value, list | tuple):
            parts = [self._argument(v, forms) for v in cast("Sequence[Any]", value)]
            return f"[{', '.join(parts)}]" if isinstance(value, list) else _tuple(parts)
        return self._constant(value)


def expression(size: Form) -> str:
    """A form in Python, whose names are its symbols."""
    terms: list[str] = []
    for atoms, factor in size.terms:
        parts = [str(a) if isinstance(a, str) else f"(({expression(a.form)}) // {a.by})" for a in atoms]
        terms.append(" * ".join([f"({factor})", *parts]))
    return " + ".join(terms) or "0"


def _tuple(parts: Any) -> str:
    listed = list(parts)
    return f"({', '.join(listed)},)" if listed else "()"
