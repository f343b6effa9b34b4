"""Text of records, arguments and tensors in the user's terms: `f32[32,784]`, "argument 1 (`input`) of `linear`"."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.aten import dtypes
from lazytpu.trace.trie import Number, Operand, Record
from lazytpu.trace.value import Layout


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """A tensor argument: the slot that it reads, and its dtype, size, stride and offset in elements."""

    slot: int
    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    base: tuple[int, ...]
    """The shape of the array in memory of which it is a view."""

    def __str__(self) -> str:
        return array(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class Static:
    """A Python value that is compiled in. NaN equals itself, and -0.0 differs from 0.0."""

    kind: type
    exact: Any
    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and (self.kind, self.exact) == (other.kind, other.exact)

    def __hash__(self) -> int:
        return hash((self.kind, self.exact))

    def __str__(self) -> str:
        return str(self.value)


def array(dtype: Any, shape: Sequence[int]) -> str:
    """Return the text of an array type, such as `f32[32,784]`."""
    return f"{dtypes.name(dtype)}[{','.join(map(str, shape))}]"


def program_name(records: Sequence[Record]) -> str:
    """Return the user's function from which most of the records come."""
    functions = Counter([r.line.function for r in records if r.line is not None and not r.line.backward])
    most = functions.most_common(1)[0][0] if functions else "program"
    return "main" if most == "<module>" else "".join(c if c.isalnum() or c == "_" else "_" for c in most)


def op_name(record: Record) -> str:
    """Return the name of an op, such as `linear` for aten.linear.default; ops of other libraries keep
    their namespace."""
    namespace, name, *_ = str(record.op).split(".")
    return name if namespace == "aten" else f"{namespace}.{name}"


def place(line: Any) -> str:
    """Return a source line such as `model.py:41`, relative to the current folder or with one folder before it; empty if
    it is unknown."""
    if line is None:
        return ""
    return f"{shortened(line.file)}:{line.line}" + (" (backward)" if line.backward else "")


def shortened(file: str) -> str:
    """Return a path, which a line number may follow, relative to the current folder or with one folder before it."""
    path = os.path.relpath(file)
    return os.sep.join(file.split(os.sep)[-2:]) if path.startswith(os.pardir) else path


def at(record: Record) -> str:
    """Return an op with its source line and module, such as `linear` at model.py:41 in blocks.2.attn."""
    where = located(record.line)
    return f"`{op_name(record)}`" + (f" at {where}" if where else "")


def located(line: Any) -> str:
    """Return a source line as `place` does, with the module that recorded the op there."""
    return place(line) + (f" in {line.module}" if line is not None and line.module else "")


def layouts(records: Sequence[Record]) -> dict[int, Layout]:
    """Return the layout of every slot in these records, which are the first of a trace."""
    by_slot: dict[int, Layout] = {}
    for record in records:
        for slot, layout, _ in record.admitted:
            by_slot[slot] = layout
        present = [o for o in record.outs if o is not None]
        by_slot.update(zip(record.out_slots, present, strict=False))
        for name, slots in record.written.items():
            argument = record.arguments[name]
            for operand, slot in zip(argument if isinstance(argument, list) else [argument], slots, strict=True):
                by_slot[slot] = by_slot[operand.slot]
    return by_slot


def described(value: Any, known: Mapping[int, Layout]) -> Any:
    """Return an argument of a record in a form to compare and print: TensorArgument, Number, Static, None, or tuples of
    these."""
    if isinstance(value, Operand):
        layout = known[value.slot]
        base = tuple(layout.shape)
        if value.view is None:
            return TensorArgument(value.slot, layout.dtype, base, tuple(layout.stride), 0, base)
        shape, stride, offset, dtype = value.view
        return TensorArgument(value.slot, dtype, tuple(shape), tuple(stride), offset, base)
    if isinstance(value, list | tuple):
        return tuple(described(v, known) for v in value)
    if value is None or isinstance(value, Number):
        return value
    exact = repr(value) if isinstance(value, float | complex) else value
    return Static(type(value), exact, value)


def text_of(value: Any) -> str:
    """Return the text of an argument in a line of a diff."""
    if isinstance(value, TensorArgument):
        view = "" if value.base == value.shape else " view" if not value.offset else f" view at {value.offset}"
        return f"%{value.slot}: {value}{view}"
    if isinstance(value, Number):
        return f"<{value.kind.__name__}>"
    if isinstance(value, tuple):
        shown = [text_of(v) for v in value[:4]] + ["…"] * (len(value) > 4)
        return f"[{', '.join(shown)}]"
    return str(value)


_UNTOLD = ("layout", "device", "pin_memory", "memory_format")


def line_of(record: Record, known: Mapping[int, Layout]) -> str:
    """Return a record as a line of a diff: `linear(input=%1: f32[17,784], …) -> f32[17,10]  model.py:41 in head`."""
    defaults = {a.name: a.default_value for a in record.op._schema.arguments if a.has_default_value()}
    shown = [
        f"{name}={text_of(described(value, known))}"
        for name, value in record.arguments.items()
        if name not in _UNTOLD and (name not in defaults or value != defaults[name])
    ]
    outs = [array(o.dtype, o.shape) for o in record.outs if o is not None]
    results = f" -> {', '.join(outs)}" if outs else ""
    return f"{op_name(record)}({', '.join(shown)}){results}  {located(record.line)}".rstrip()
