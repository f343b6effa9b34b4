"""Custom kernels at other sizes. Records derived for other sizes still have the kernel keys of their original; this
module replaces them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lazytpu.engine.recompiles.wording import at
from lazytpu.engine.sizes.buckets import OneSize
from lazytpu.ir.symbolic import number_at_bound
from lazytpu.trace.extract import Slots
from lazytpu.trace.families import MEMBERS, Kind
from lazytpu.trace.trie import Operand, Record
from lazytpu.trace.value import Layout


def with_kernels(records: list[Record]) -> list[Record]:
    """Return the records with the kernel of their own sizes. Raise OneSize if there is none."""
    if not any(_keys(record) for record in records):
        return records
    layouts = Slots(records).layouts
    return [_with_kernel(record, name, layouts) for record in records for name in _keys(record) or ("",)]


def _keys(record: Record) -> Sequence[str]:
    """Return the names of a record's arguments that are kernel keys."""
    return [name for name, value in record.arguments.items() if type(value) is str and value in MEMBERS]


def _with_kernel(record: Record, name: str, layouts: Mapping[int, Layout]) -> Record:
    if not name:
        return record
    operands = [_kind(value, layouts) for argument, value in record.arguments.items() if argument != name]
    try:
        key, results = MEMBERS[record.arguments[name]].at(operands)
    except Exception as error:  # a user function raises anything at unsupported sizes
        raise OneSize(str(error), at(record)) from error
    expected = [(layout.dtype, _at_bound(layout.shape)) for layout in record.outs if layout is not None]
    written = [
        kind for argument in record.written for kind in [_kind(record.arguments[argument], layouts)] if kind is not None
    ]
    if sorted(map(str, [*expected, *written])) != sorted(map(str, results)):
        raise OneSize(f"it returns {list(results)}, where {expected} would follow", at(record))
    return replace(record, arguments={**record.arguments, name: key})


def _kind(value: Any, layouts: Mapping[int, Layout]) -> Kind | None:
    """Return the dtype and shape of an operand at the bound, or None for another argument."""
    if not isinstance(value, Operand):
        return None
    if value.view is None:
        layout = layouts[value.slot]
        return layout.dtype, _at_bound(layout.shape)
    size, _, _, dtype = value.view
    return dtype, _at_bound(size)


def _at_bound(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(number_at_bound, shape))
