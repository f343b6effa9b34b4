"""What is alive on the device: by what it is for, and by the source line that made it (`lazytpu.memory()`)."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, ConstantBuffer
from lazytpu.runtime.buffers.custom_layout import CustomLayoutBuffer
from lazytpu.runtime.buffers.padded import PaddedBuffer

if TYPE_CHECKING:
    from rich.console import Group

SHOWN = 12  # lines of the script in the table; by_line() has all
# By id of a buffer: its owner, with `category` and `name`, given all of Python's objects by type.
Owners = Callable[[Mapping[type, Iterable[Any]]], Mapping[int, Any]]

CATEGORIES = (
    "parameters",
    "module buffers",
    "optimizer state",
    "gradients",
    "activations",
    "other tensors",
    "inputs",
    "pending inputs",
    "other",
)
"""`activations` belong to an autograd graph; `inputs` came from the host and no module has them; `pending inputs` are
kept by recorded ops alone; `other tensors` the script holds; `other` is held by none of these."""


@dataclass(frozen=True, slots=True)
class LiveValue:
    """One value on the device: `name` is that of a module's or optimizer's tensor, `line` where the op is that made it
    ("file:line"), `program` the program that computed it; each None where nobody knows or there is none. `padding` are
    the bytes among `nbytes` beyond the value's own, where its program is made for many sizes."""

    nbytes: int
    category: str
    name: str | None
    dtype: str
    shape: tuple[int, ...]
    op: str | None
    line: str | None
    program: str | None
    padding: int = 0

    def __str__(self) -> str:
        kind = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        what = f"{self.category} {self.name}" if self.name else self.category
        what += f", {size(self.padding)} padding" if self.padding else ""
        maker = f", made by {self.op}" if self.op else ""
        return f"{size(self.nbytes):>10}  {kind} ({what}){maker}" + (f" at {short(self.line)}" if self.line else "")


@dataclass(frozen=True, slots=True)
class Amount:
    """How many values there are, and their bytes."""

    nbytes: int
    values: int


@dataclass(frozen=True)
class MemoryReport:
    """The device's memory at one moment, in bytes; `print` shows it as a table.

    `allocated` is the sum of `values` (largest first; a value that several tensors share is there once), as
    `torch.tpu.memory_allocated()` has it; `peak` the most there was, temporaries of programs included; `free` and
    `total` are the device's. `beside` is what is not in `allocated`: "cached constants" (run-time numbers that are kept
    since they may come again) and "programs" (code and constants of what is compiled).
    """

    values: tuple[LiveValue, ...]
    peak: int
    free: int
    total: int
    beside: Mapping[str, Amount]

    @property
    def allocated(self) -> int:
        return sum(value.nbytes for value in self.values)

    @property
    def padding(self) -> int:
        """Bytes of `allocated` that are padding, of values whose programs are made for many sizes."""
        return sum(value.padding for value in self.values)

    def by_category(self) -> dict[str, Amount]:
        """Bytes and values of each category that has any, in the order of `CATEGORIES`."""
        amounts = _grouped(self.values, lambda value: value.category)
        return {name: amounts[name] for name in CATEGORIES if name in amounts}

    def by_line(self) -> dict[str, Amount]:
        """Bytes and values by the source line ("file:line") that made them, most bytes first; by the op where there is
        no line, as for gradients that autograd adds up."""
        amounts = _grouped(self.values, lambda value: value.line or f"({value.op or 'unknown'})")
        return dict(sorted(amounts.items(), key=lambda item: -item[1].nbytes))

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain numbers, strings, lists and dicts, fit for JSON."""
        return {
            "allocated": self.allocated,
            "padding": self.padding,
            "peak": self.peak,
            "free": self.free,
            "total": self.total,
            "beside": {name: asdict(amount) for name, amount in self.beside.items()},
            "categories": {name: asdict(amount) for name, amount in self.by_category().items()},
            "lines": {line: asdict(amount) for line, amount in self.by_line().items()},
            "values": [asdict(value) | {"shape": list(value.shape)} for value in self.values],
        }

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table

        padding = f"{size(self.padding)} of it padding, " if self.padding else ""
        title = f"{size(self.allocated)} on the device ({padding}peak {size(self.peak)}, free {size(self.free)})"
        table = Table("by category, then by line", box=None, pad_edge=False)
        table.columns[0].overflow = "fold"
        for column in ("bytes", "values"):
            table.add_column(column, justify="right")
        for name, amount in self.by_category().items():
            table.add_row(name, size(amount.nbytes), f"{amount.values:,}")
        for name, amount in self.beside.items():
            table.add_row(f"({name})", size(amount.nbytes), f"{amount.values:,}")
        table.add_row()
        every = list(self.by_line().items())
        for line, amount in every[:SHOWN]:
            table.add_row(short(line), size(amount.nbytes), f"{amount.values:,}")
        rest = every[SHOWN:]
        if rest:
            nbytes, values = sum(a.nbytes for _, a in rest), sum(a.values for _, a in rest)
            table.add_row(f"({len(rest):,} more lines)", size(nbytes), f"{values:,}")
        return Group(title, table)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, color_system=None)
        with console.capture() as shown:
            console.print(self)
        return "\n".join(line.rstrip() for line in shown.get().splitlines())


def report(owners: Owners, free: int, total: int, beside: Mapping[str, Amount]) -> MemoryReport:
    """What is alive now. Counts every buffer once, whoever shares it; needs no device and waits for nothing."""
    objects: dict[type, list[Any]] = {}
    for thing in gc.get_objects():
        objects.setdefault(type(thing), []).append(thing)
    owned = owners(objects)
    buffers = [*objects.get(Buffer, ()), *objects.get(ConstantBuffer, ())]
    live = [(buffer, buffer.array) for buffer in buffers]
    values = [_value(buffer, array, owned.get(id(buffer))) for buffer, array in live if array is not None]
    custom = [b for b in objects.get(CustomLayoutBuffer, ()) if not b.gone()]
    values += [_value(b, b.existing, owned.get(id(b))) for b in custom]
    padded = [b for b in objects.get(PaddedBuffer, ()) if not b.gone()]
    values += [_value(b, b.existing, owned.get(id(b)), b.shape, b.padding) for b in padded]
    unseen = MEMORY.live - sum(value.nbytes for value in values)
    if gc.get_freeze_count() and unseen > 0:
        values.append(LiveValue(unseen, "other", "hidden by gc.freeze()", "uint8", (unseen,), None, None, None))
    values.sort(key=lambda value: -value.nbytes)
    return MemoryReport(tuple(values), MEMORY.peak, free, total, beside)


def short(line: str) -> str:
    """A source line for people: its path from the working directory, if it lies there."""
    try:
        folder = os.getcwd() + os.sep
    except FileNotFoundError:  # somebody has removed it
        return line
    return line.removeprefix(folder)


def size(nbytes: int) -> str:
    """Bytes for people: "1.50 GiB"."""
    scaled, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if scaled < 1024 or unit == "TiB":
            break
        scaled /= 1024
    return f"{nbytes} B" if unit == "B" else f"{scaled:.{2 if scaled < 10 else 1}f} {unit}"


def _value(buffer: Buffer, array: Any, owner: Any, shape: tuple[int, ...] | None = None, padding: int = 0) -> LiveValue:
    origin = buffer.origin
    category, name = ("other", None) if owner is None else (owner.category, owner.name)
    if category == "other tensors" and origin is not None and origin.program is None:
        category = "inputs"
    op, line, program = (None, None, None) if origin is None else (origin.op, origin.line, origin.program)
    where = None if line is None else str(line)
    shape = tuple(array.shape) if shape is None else shape
    return LiveValue(buffer.nbytes, category, name, str(array.dtype), shape, op, where, program, padding)


def _grouped(values: Iterable[LiveValue], key: Callable[[LiveValue], str]) -> dict[str, Amount]:
    sizes_of: dict[str, list[int]] = {}
    for value in values:
        sizes_of.setdefault(key(value), []).append(value.nbytes)
    return {name: Amount(sum(sizes), len(sizes)) for name, sizes in sizes_of.items()}
