"""Custom kernels at other sizes: a trace that is put together has the keys of the trace that it was made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lazytpu.ir.symbolic import number_at_bound
from lazytpu.trace.extract import Slots
from lazytpu.trace.families import MEMBERS, Kind
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout


class OtherKernel(Exception):
    """A kernel is another one at these sizes, or none. The message names it, the line, and says why."""


def with_kernels(records: list[Record]) -> list[Record]:
    """The records with the kernels of their sizes. Raises OtherKernel."""
    if not any(_keys(record) for record in records):
        return records
    layouts = Slots(records).layouts
    return [_with_kernel(record, name, layouts) for record in records for name in _keys(record) or ("",)]


def _keys(record: Record) -> Sequence[str]:
    return [name for name, value in record.arguments.items() if type(value) is str and value in MEMBERS]


def _with_kernel(record: Record, name: str, layouts: Mapping[int, Layout]) -> Record:
    if not name:
        return record
    operands = [_kind(value, layouts) for each, value in record.arguments.items() if each != name]
    try:
        key, results = MEMBERS[record.arguments[name]].at(operands)
    except Exception as error:  # whatever a function raises at sizes that it does not have
        raise OtherKernel(f"{record.op} at {record.line}: {error}") from error
    expected = [(layout.dtype, _at_bound(layout.shape)) for layout in record.outs if layout is not None]
    written = [kind for each in record.written for kind in [_kind(record.arguments[each], layouts)] if kind is not None]
    if sorted(map(str, [*expected, *written])) != sorted(map(str, results)):
        raise OtherKernel(f"{record.op} at {record.line} returns {list(results)}, where {expected} would follow")
    return replace(record, arguments={**record.arguments, name: key})


def _kind(value: Any, layouts: Mapping[int, Layout]) -> Kind | None:
    if not isinstance(value, Operand):
        return None
    if value.view is None:
        layout = layouts[value.slot]
        return layout.dtype, _at_bound(layout.shape)
    size, _, _, dtype = value.view
    return dtype, _at_bound(size)


def _at_bound(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(number_at_bound, shape))
