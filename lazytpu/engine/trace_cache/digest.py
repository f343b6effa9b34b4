"""Canonical text of a trace: equal for equal traces, in every process, and different for different ones.

The text has everything that determines the trace's results. For each record these are its op, arguments, results, the
slots it writes, and the inputs it uses first. Numbers are written by their bits. Source lines and parameter names are
not included. One record is one line:

    aten.addmm.default(self=%0;mat1=%1;mat2=%2[4,3;1,4;0;torch.float32];beta=i1;alpha=i1) @0:torch.float32[8,3;3,1]=%0 …
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from typing import Any

import torch

from lazytpu.trace.trie import Number, Operand, Record
from lazytpu.trace.value import Layout


class NotCanonical(TypeError):
    """Raised for an argument of a type without canonical text; such a trace cannot be identified."""


def canonical(records: Iterable[Record]) -> str:
    """Return the canonical text of a trace.

    Raise NotCanonical, with the op and the argument, if an argument has no canonical text.
    """
    return "\n".join(map(_record, records))


def _record(record: Record) -> str:
    """Return the canonical text of a record."""
    arguments: list[str] = []
    for name, value in record.arguments.items():
        try:
            arguments.append(f"{name}={_value(value)}")
        except NotCanonical as error:
            raise NotCanonical(f"argument '{name}' of {record.op}: {error}") from None
    fields = [f"{record.op}({';'.join(arguments)})"]
    slots = iter(record.out_slots)
    fields.extend("_" if layout is None else f"%{next(slots)}:{_layout(layout)}" for layout in record.outs)
    fields.extend(f"{name}->{_integers(written)}" for name, written in record.written.items())
    fields.extend(
        f"{'empty' if empty else 'input'} %{slot}:{_layout(layout)}" for slot, layout, empty in record.admitted
    )
    if record.rng is not None:
        fields.append(f"rng #{record.rng}")
    if record.settings:
        fields.append(f"settings {_value(record.settings)}")
    if record.in_backward:
        fields.append("backward")
    if record.tuned:
        fields.append("tuned")
    return " ".join(fields)


def _layout(layout: Layout) -> str:
    return f"{layout.dtype}[{_integers(layout.shape)};{_integers(layout.stride)}]"


def _integers(values: Iterable[int]) -> str:
    return ",".join(map(str, values))


def _value(value: Any) -> str:
    """Return the canonical text of an argument."""
    write = _TEXTS.get(type(value))  # by the exact type: isinstance takes True for 1, and an IntEnum for an int
    if write is None:
        raise NotCanonical(f"a {type(value).__module__}.{type(value).__qualname__} has no canonical text")
    return write(value)


def _operand(operand: Operand) -> str:
    if operand.view is None:
        return f"%{operand.slot}"
    size, stride, offset, dtype = operand.view
    return f"%{operand.slot}[{_integers(size)};{_integers(stride)};{offset};{dtype}]"


def _number(number: Number) -> str:
    if number.kind not in (bool, int, float, complex):
        raise NotCanonical(f"a run-time number of type {number.kind!r} has no canonical text")
    return f"#{number.index}:{number.kind.__name__}" + ("" if number.dtype is None else f":{number.dtype}")


def _bits(value: float) -> str:
    return struct.pack(">d", value).hex()  # distinguishes NaNs, and -0.0 from 0.0


_TEXTS: dict[type, Callable[[Any], str]] = {
    Operand: _operand,
    Number: _number,
    type(None): lambda value: "none",
    bool: lambda value: "true" if value else "false",
    int: lambda value: f"i{value}",
    float: lambda value: f"f{_bits(value)}",
    complex: lambda value: f"c{_bits(value.real)}{_bits(value.imag)}",
    str: json.dumps,
    list: lambda values: f"[{','.join(map(_value, values))}]",
    tuple: lambda values: f"({','.join(map(_value, values))})",
    torch.Size: lambda values: f"({','.join(map(_value, values))})",
    torch.dtype: str,
    torch.device: lambda device: f"device {device}",
    torch.layout: str,
    torch.memory_format: str,
}
