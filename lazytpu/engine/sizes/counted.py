"""Functions with sizes that are counted on the device: their program at the greatest counts, made one for all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from xdsl.dialects.func import FuncOp

from lazytpu.aten.importer import import_trace
from lazytpu.aten.indexing.counted import COUNTED, Counted
from lazytpu.engine.sizes.padded import padded_for
from lazytpu.engine.sizes.samples import more_samples, samples
from lazytpu.engine.sizes.templates import OneSize
from lazytpu.engine.trace_cache.digest import canonical
from lazytpu.ir.forms import Range
from lazytpu.trace.extract import Slots, operands
from lazytpu.trace.subtraces import SUBTRACES, Subtrace
from lazytpu.trace.trie import Operand, Record

OF_SOME = frozenset(
    f"aten.{name}.{overload}"
    for name in ("max", "min", "amax", "amin", "argmax", "argmin", "aminmax", "median", "mode")
    for overload in ("default", "dim")
) - {"aten.median.default"}
"Ops that have no result where there is nothing along the dims that they reduce."
ANOTHER_OF_NONE = frozenset(("aten.median.default", "aten.nanmedian.default"))
"Ops whose result is a number of its own there, which their program for some does not give."


@dataclass
class _AtCounts:
    """A function at all counts, as a bucket is: `function(counts)` has its records."""

    function: Callable[[Mapping[str, int]], Subtrace]
    symbols: dict[str, Range]
    notes: dict[Any, Any] = field(default_factory=dict[Any, Any])
    seen: dict[tuple[int, ...], Subtrace] = field(default_factory=dict[tuple[int, ...], Subtrace])

    def subtrace(self, sizes: Mapping[str, int]) -> Subtrace:
        key = tuple(sizes.values())
        if key not in self.seen:
            self.seen[key] = self.function(sizes)
        return self.seen[key]

    def at(self, sizes: Mapping[str, int]) -> list[Record]:
        return list(self.subtrace(sizes).records)

    def samples(self) -> list[dict[str, int]]:
        return samples(self.symbols)

    def more_samples(self) -> list[dict[str, int]]:
        return more_samples(self.symbols)


def counted(bounds: Mapping[str, int], function: Callable[[Mapping[str, int]], Subtrace]) -> str:
    """See `EnginePort.counted`."""
    at = _AtCounts(function, {name: (0, bound) for name, bound in bounds.items()})
    bound = at.subtrace(bounds)
    live = [result.slot for result in bound.results if isinstance(result, Operand)]
    positive = _positive(at, bounds)

    def import_bound(identities: bool) -> Any:
        return import_trace(bound.records, live, (), identities=identities)

    imported, sized, _ = padded_for(import_bound, at, tuple(live), True)
    if any(dim.padded for dims in sized.results for dim in dims):
        raise OneSize("a result has a size that is counted")
    text = [(key, canonical(each.records), each.numbers, each.results) for key, each in sorted(at.seen.items())]
    name = hashlib.sha256(repr((sorted(bounds.items()), text)).encode()).hexdigest()[:32]
    block = next(op for op in imported.module.ops if isinstance(op, FuncOp)).body.block
    inputs = [bound.inputs[slot] for slot in Slots(bound.records).inputs]
    packs = imported.packer(list(bound.numbers))
    checks = [(check.message, check.error) for check in imported.checks]
    COUNTED[name] = Counted(block, packs, inputs, len(bounds), checks, positive)
    SUBTRACES.setdefault(name, bound)
    return name


def _positive(at: _AtCounts, bounds: Mapping[str, int]) -> Sequence[tuple[int, str]]:
    """The counts that may not be 0, as a maximum is taken of so many elements. Raises OneSize where one that is 0 has
    another program."""
    found: dict[int, str] = {}
    before = at.subtrace(bounds).records
    for number, (name, bound) in enumerate(bounds.items()):
        after = at.subtrace({**bounds, name: bound - 1}).records
        shapes = [Slots(records).layouts for records in (before, after)]
        for one, other in zip(before, after, strict=True):
            op, otherwise = str(one.op), _is_otherwise(one)
            if not (op in OF_SOME or otherwise) or _reduced(one, shapes[0]) == _reduced(other, shapes[1]):
                continue
            if otherwise:
                raise OneSize(f"{op} of nothing is a number of its own, or an error")
            found[number] = f"{op.split('.')[1]}(): Expected reduction dim to be specified for input.numel() == 0"
    return list(found.items())


def _is_otherwise(record: Record) -> bool:
    """Whether an op is something else for nothing. Norms of numbers below 0 and of infinity are least or greatest
    elements."""
    order = record.arguments.get("ord") if str(record.op) == "aten.linalg_vector_norm.default" else 0
    return str(record.op) in ANOTHER_OF_NONE or not (isinstance(order, int | float) and 0 <= order < inf)


def _reduced(record: Record, layouts: Mapping[int, Any]) -> list[int]:
    """The sizes along which a record reduces its first operand."""
    operand = next(each for value in record.arguments.values() for each in operands(value))
    shape = layouts[operand.slot].shape if operand.view is None else operand.view[0]
    dims = record.arguments.get("dim")
    dims = [dims] if isinstance(dims, int) else dims or range(len(shape))
    return [shape[dim] for dim in dims]
