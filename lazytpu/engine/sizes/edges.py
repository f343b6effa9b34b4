"""Trie edges with symbolic sizes: the key, the layouts of the results, and the record.

The integers of a key are those of its record's arguments, so a derived key always belongs to the derived record. Unlike
the records of a shape family, edges have the strides of dimensions of one element as torch set them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from lazytpu.engine.sizes.skeletons import Strides, Together, forms_in, with_sizes
from lazytpu.engine.sizes.strides import dense_order, dense_strides
from lazytpu.ir.forms import Form
from lazytpu.ir.symbolic import Size
from lazytpu.trace.extract import operands
from lazytpu.trace.trie import Operand, Record, State
from lazytpu.trace.value import Layout

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Edge:
    """An edge like the one to the state `twin`, with symbolic sizes."""

    twin: State
    key: Key | None
    outs: Any
    record: Record

    @cached_property
    def forms(self) -> frozenset[Form]:
        """The expressions of all integers."""
        return forms_in((self.key, self.outs, self.record))

    @cached_property
    def sizes(self) -> frozenset[Form]:
        """The expressions of sizes of tensors."""
        layouts = [*[layout for _, layout, _ in self.record.admitted], *filter(None, self.record.outs)]
        read = [operand for value in self.record.arguments.values() for operand in operands(value)]
        views = [operand.view[0] for operand in read if operand.view is not None]
        return forms_in([*[layout.shape for layout in layouts], *views])

    def at(self, numbers: Mapping[Form, int], layout: Callable[..., Layout]) -> tuple[Key, Any, Record]:
        """Return the key, the results and the record where the expressions have these values."""
        parts: Any = self.key, self.outs, self.record
        return with_sizes(parts, lambda size: numbers[size.form], layout) if self.forms else parts


def at_sizes(states: Sequence[State], integers: Iterator[Any]) -> list[Edge]:
    """Return the edges into these states, each of one record, with symbolic sizes for the integers of the records."""
    walk, edges = _Exact(integers), list[Edge]()
    for state in states:
        record = walk.record(*state.recorded)
        layouts = filter(None, record.outs)
        edges.append(Edge(state, _key(state.key, record), _outs(state.outs, layouts) if record.outs else (), record))
    return edges


class _Exact(Together):
    """Rebuilds records, and derives strides of dimensions of one element from the strides that torch set in them."""

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


def _key(key: Key | None, record: Record) -> Key | None:
    """Return the key of a record that differs from the one with this key in sizes only.

    It has a token for each argument (`lazytpu.frontend.recording.codegen`).
    """
    if key is None:
        return None
    names = [argument.name for argument in record.op._schema.arguments if "Generator" not in str(argument.type)]
    admitted = {slot: layout.empty_key if empty else layout.key for slot, layout, empty in record.admitted}
    pairs = zip(key[1:], names, strict=False)
    return key[0], *[_token(token, record.arguments.get(name), admitted) for token, name in pairs]


def _token(token: Any, value: Any, admitted: Mapping[int, Any]) -> Any:
    """Return the token of an argument; `token` is the one at other sizes."""
    if isinstance(value, Operand):
        base = token[0] if type(token) is tuple and len(token) == 5 else token
        base = base if type(base) is int else admitted[value.slot]
        return base if value.view is None else (base, *value.view)
    if isinstance(value, list | tuple) and isinstance(token, tuple):
        return tuple([_token(*pair, admitted) for pair in zip(token, cast("Sequence[Any]", value), strict=False)])
    if type(value) is Size:
        return (token[0], value) if type(token) is tuple else value
    return token
