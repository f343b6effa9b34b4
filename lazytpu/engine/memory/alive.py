"""Live values on the device, by category and by source line (`lazytpu.memory()`)."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lazytpu.runtime.buffers.buffer import MEMORY, Buffer, ConstantBuffer, KnownBuffer
from lazytpu.runtime.buffers.custom_layout import CustomLayoutBuffer
from lazytpu.runtime.buffers.padded import PaddedBuffer

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_ELEMENT = re.compile(r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^]'"]*)\](?= in \S+\(\)$|$)""")
"The last index in the path of a holder, such as [3] in `losses[3] in train()`."
SHOWN = 12  # source lines in the table; by_line() has all
# Maps all Python objects by type, and whether to search for holders, to owners by id of their buffer, and the graphs of
# autograd. An owner has `category`, `name` and `holder`; the graphs have a `count` and `holders`.
Owners = Callable[[Mapping[type, Iterable[Any]], bool], tuple[Mapping[int, Any], Any]]

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
"""`activations` belong to an autograd graph; `inputs` came from the host and belong to no module; `pending inputs` are
kept only by recorded ops; `other tensors` are held by the script; `other` are all others."""


@dataclass(frozen=True, slots=True)
class LiveValue:
    """A value on the device.

    `name` is the name of a module's or optimizer's tensor, `line` the source line ("file:line") of the op that computed
    it, and `program` the program; each is None if unknown or absent. `padding` are the bytes of `nbytes` beyond the
    value's own size, if its program serves many sizes. `holder` is the path to the script's tensor that keeps it, such
    as `losses[3]`, if the report searched for it.
    """

    nbytes: int
    category: str
    name: str | None
    dtype: str
    shape: tuple[int, ...]
    op: str | None
    line: str | None
    program: str | None
    padding: int = 0
    holder: str | None = None

    def __str__(self) -> str:
        kind = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        what = f"{self.category} {self.name}" if self.name else self.category
        what += f", {size(self.padding)} padding" if self.padding else ""
        maker = f", made by {self.op}" if self.op else ""
        where = f" at {short(self.line)}" if self.line else ""
        holder = f", held by {self.holder}" if self.holder else ""
        return f"{size(self.nbytes):>10}  {kind} ({what}){maker}{where}{holder}"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of values, and their bytes."""

    nbytes: int
    values: int


@dataclass(frozen=True)
class MemoryReport:
    """The device's memory at one moment, in bytes; `print` shows it as a table.

    `allocated` is the sum of `values` (largest first; a value shared by several tensors counts once), as in
    `torch.tpu.memory_allocated()`. `peak` is the maximum so far, including temporaries of programs. `free` and `total`
    are the device's. `beside` is not part of `allocated`: "cached constants" (run-time numbers kept for reuse) and
    "programs" (code and constants of compiled programs).

    `graphs` is the number of autograd's graphs that tensors keep alive, and `graph_holders` the paths to these tensors,
    if the report searched for holders (`searched`). `earlier` has the amounts by line in the report before.
    """

    values: tuple[LiveValue, ...]
    peak: int
    free: int
    total: int
    beside: Mapping[str, Amount]
    graphs: int = 0
    graph_holders: tuple[str, ...] = ()
    earlier: Mapping[str, Amount] = field(default_factory=dict[str, Amount])
    searched: bool = False

    @property
    def allocated(self) -> int:
        return sum(value.nbytes for value in self.values)

    @property
    def padding(self) -> int:
        """The bytes of `allocated` that are padding, of values whose programs serve many sizes."""
        return sum(value.padding for value in self.values)

    def by_category(self) -> dict[str, Amount]:
        """Return the bytes and values of each nonempty category, in the order of `CATEGORIES`."""
        amounts = _grouped(self.values, lambda value: value.category)
        return {name: amounts[name] for name in CATEGORIES if name in amounts}

    def by_line(self) -> dict[str, Amount]:
        """Return the bytes and values by source line ("file:line"), most bytes first. Values without a line, such as
        gradients summed by autograd, are listed by op."""
        amounts = _grouped(self.values, lambda value: value.line or f"({value.op or 'unknown'})")
        return dict(sorted(amounts.items(), key=lambda item: -item[1].nbytes))

    def by_holder(self) -> dict[str, Amount]:
        """Return the bytes and values by the variable or attribute that holds them, most bytes first; empty unless the
        report searched for holders."""
        values = [value for value in self.values if value.holder is not None]
        amounts = _grouped(values, lambda value: _ELEMENT.sub("", str(value.holder)))
        return dict(sorted(amounts.items(), key=lambda item: -item[1].nbytes))

    def growth(self) -> dict[str, Amount]:
        """Return the bytes and values by which lines have grown since the report before, most bytes first; negative
        where they have shrunk."""
        now, nothing = self.by_line(), Amount(0, 0)
        lines = dict.fromkeys((*now, *self.earlier))
        pairs = [(line, now.get(line, nothing), self.earlier.get(line, nothing)) for line in lines]
        changes = [(line, Amount(a.nbytes - b.nbytes, a.values - b.values)) for line, a, b in pairs if a != b]
        return dict(sorted(changes, key=lambda item: -item[1].nbytes))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain numbers, strings, lists and dicts for JSON."""
        return {
            "allocated": self.allocated,
            "padding": self.padding,
            "peak": self.peak,
            "free": self.free,
            "total": self.total,
            "beside": {name: asdict(amount) for name, amount in self.beside.items()},
            "categories": {name: asdict(amount) for name, amount in self.by_category().items()},
            "lines": {line: asdict(amount) for line, amount in self.by_line().items()},
            "holders": {holder: asdict(amount) for holder, amount in self.by_holder().items()},
            "growth": {line: asdict(amount) for line, amount in self.growth().items()},
            "graphs": self.graphs,
            "values": [asdict(value) | {"shape": list(value.shape)} for value in self.values],
        }

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        padding = f"{size(self.padding)} of it padding, " if self.padding else ""
        title = f"{size(self.allocated)} on the device ({padding}peak {size(self.peak)}, free {size(self.free)})"
        table = Table("by category, then by line", box=None, pad_edge=False)
        table.columns[0].overflow = "fold"
        for column in ("bytes", "values"):
            table.add_column(column, justify="right")
        for name, amount in self.by_category().items():
            table.add_row(Text(name), size(amount.nbytes), f"{amount.values:,}")
        for name, amount in self.beside.items():
            table.add_row(f"({name})", size(amount.nbytes), f"{amount.values:,}")
        table.add_row()
        _add_rows(table, self.by_line(), "lines")
        if self.searched:
            table.add_row()
            table.add_row("held by")
            _add_rows(table, self.by_holder(), "holders")
            lost = [value.nbytes for value in self.values if value.name is None and value.holder is None]
            if lost:
                table.add_row("(no holder found)", size(sum(lost)), f"{len(lost):,}")
        if self.earlier and self.growth():
            table.add_row()
            table.add_row("change since the report before")
            _add_rows(table, self.growth(), "lines", "+")
        if self.graphs:
            among = f", of {', '.join(self.graph_holders[:3])}" if self.graph_holders else ""
            graphs = f"{self.graphs:,} {'graphs' if self.graphs > 1 else 'graph'} of autograd alive{among}"
            return Group(title, table, Text(graphs + (", …" if len(self.graph_holders) > 3 else "")))
        return Group(title, table)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, color_system=None)
        with console.capture() as shown:
            console.print(self)
        return "\n".join(line.rstrip() for line in shown.get().splitlines())


def report(
    owners: Owners,
    free: int,
    total: int,
    beside: Mapping[str, Amount],
    holders: bool = False,
    earlier: Mapping[str, Amount] = MappingProxyType({}),
) -> MemoryReport:
    """Return the report of live memory. It counts every buffer once, does not use the device, and does not wait."""
    objects: dict[type, list[Any]] = {}
    for thing in gc.get_objects():
        objects.setdefault(type(thing), []).append(thing)
    owned, graphs = owners(objects, holders)
    buffers = [*objects.get(Buffer, ()), *objects.get(KnownBuffer, ()), *objects.get(ConstantBuffer, ())]
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
    return MemoryReport(tuple(values), MEMORY.peak, free, total, beside, graphs.count, graphs.holders, earlier, holders)


def _add_rows(table: Table, amounts: Mapping[str, Amount], kind: str, sign: str = "") -> None:
    """Add the first rows of a part of the table, and one for all others."""
    from rich.text import Text  # a str would be parsed as markup

    for name, amount in list(amounts.items())[:SHOWN]:
        table.add_row(Text(short(name)), size(amount.nbytes, sign), f"{amount.values:{sign},}")
    further = list(amounts.values())[SHOWN:]
    if further:
        nbytes, values = sum(amount.nbytes for amount in further), sum(amount.values for amount in further)
        table.add_row(f"({len(further):,} more {kind})", size(nbytes, sign), f"{values:{sign},}")


def short(line: str) -> str:
    """Return a source line relative to the working directory, if it lies there."""
    try:
        folder = os.getcwd() + os.sep
    except FileNotFoundError:  # the working directory was removed
        return line
    return line.removeprefix(folder)


def size(nbytes: int, sign: str = "") -> str:
    """Return bytes as text such as "1.50 GiB", with the `sign` "+" as "+1.50 GiB" or "-1.50 GiB"."""
    scaled, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(scaled) < 1024 or unit == "TiB":
            break
        scaled /= 1024
    return f"{nbytes:{sign}} B" if unit == "B" else f"{scaled:{sign}.{2 if abs(scaled) < 10 else 1}f} {unit}"


def _value(buffer: Buffer, array: Any, owner: Any, shape: tuple[int, ...] | None = None, padding: int = 0) -> LiveValue:
    """Return the description of a buffer."""
    origin = buffer.origin
    category, name, holder = ("other", None, None) if owner is None else (owner.category, owner.name, owner.holder)
    if category == "other tensors" and origin is not None and origin.program is None:
        category = "inputs"
    op, line, program = (None, None, None) if origin is None else (origin.op, origin.line, origin.program)
    where = None if line is None else str(line)
    shape = tuple(array.shape) if shape is None else shape
    return LiveValue(buffer.nbytes, category, name, str(array.dtype), shape, op, where, program, padding, holder)


def _grouped(values: Iterable[LiveValue], key: Callable[[LiveValue], str]) -> dict[str, Amount]:
    """Return the bytes and number of values by key."""
    sizes_of: dict[str, list[int]] = {}
    for value in values:
        sizes_of.setdefault(key(value), []).append(value.nbytes)
    return {name: Amount(sum(sizes), len(sizes)) for name, sizes in sizes_of.items()}
