"""Trie edges at other sizes, which may be symbolic: the key, the layouts of the results, and the record.

The integers of a key are those of its record's arguments, so a derived key always belongs to the derived record. Unlike
the records of a shape family, edges have the strides of dimensions of one element as torch set them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

from lazytpu.engine.sizes.skeletons import Strides, Together
from lazytpu.engine.sizes.strides import dense_order, dense_strides
from lazytpu.ir.symbolic import Size
from lazytpu.trace.trie import Operand, Record, State
from lazytpu.trace.value import Layout

Key = tuple[Any, ...]


Edge = tuple[Key, Any, Record]
"""The key, the results and the record of an edge."""


def at_sizes(states: Sequence[State], integers: Iterator[Any], layout: Callable[..., Layout] = Layout) -> list[Edge]:
    """Return the edges into these states, each of one record, with other integers in the records. `layout` creates the
    layouts. A state without a key has an empty one."""
    walk, edges = _Exact(integers, layout), list[Edge]()
    for state in states:
        record = walk.record(*state.recorded)
        outs = _outs(state.outs, filter(None, record.outs)) if record.outs else ()
        edges.append((_key(state.key, record) if state.key else (), outs, record))
    return edges


class _Exact(Together):
    """Rebuilds records, and derives strides of dimensions of one element from the strides that torch set in them."""

    def __init__(self, integers: Iterator[Any], layout: Callable[..., Layout]) -> None:
        super().__init__(integers)
        self.new = layout

    def strided(self, size: Strides, stride: Strides, canonical: Strides) -> tuple[Strides, Strides]:
        new, steps = super().strided(size, stride, canonical)
        if 1 not in size:
            return new, steps
        order = dense_order(size, stride)
        if order is not None:
            return new, dense_strides(new, order)
        # torch sets most of them to the extent of another dimension.
        dims = list(zip(size, stride, new, steps, strict=True))
        extents = {n * step: new_n * new_step for n, step, new_n, new_step in dims if n > 1}
        return new, tuple([extents.get(step, step) if n == 1 else new_step for n, step, _, new_step in dims])


def _outs(outs: Any, layouts: Iterator[Layout]) -> Any:
    """Return nested results with other layouts."""
    if isinstance(outs, Layout):
        return next(layouts)
    return tuple([_outs(out, layouts) for out in cast("Sequence[Any]", outs)]) if isinstance(outs, tuple) else outs


def _key(key: Key, record: Record) -> Key:
    """Return the key of a record that differs from the one with this key in sizes only.

    It has a token for each argument (`lazytpu.frontend.recording.codegen`).
    """
    admitted = {slot: layout.empty_key if empty else layout.key for slot, layout, empty in record.admitted}
    pairs = zip(key[1:], _names(record.op), strict=False)
    return key[0], *[_token(token, record.arguments.get(name), admitted) for token, name in pairs]


@cache
def _names(op: Any) -> list[str]:
    """Return the names of the arguments that have a token."""
    return [argument.name for argument in op._schema.arguments if "Generator" not in str(argument.type)]


def _token(token: Any, value: Any, admitted: Mapping[int, Any]) -> Any:
    """Return the token of an argument; `token` is the one at other sizes."""
    if isinstance(value, Operand):
        base = token[0] if type(token) is tuple and len(token) == 5 else token
        base = base if type(base) is int else admitted[value.slot]
        return base if value.view is None else (base, *value.view)
    if isinstance(value, list | tuple) and isinstance(token, tuple):
        return tuple([_token(*pair, admitted) for pair in zip(token, cast("Sequence[Any]", value), strict=False)])
    if type(value) in (int, Size):
        return (token[0], value) if type(token) is tuple else value
    return token
