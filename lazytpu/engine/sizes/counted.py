"""Functions with sizes that are counted on the device: their program at the greatest counts, made one for all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from typing import Any

from xdsl.dialects.func import FuncOp

from lazytpu.aten.importer import import_trace
from lazytpu.aten.indexing.counted import COUNTED, Counted, Refused
from lazytpu.engine.sizes.padded import padded_for
from lazytpu.engine.sizes.templates import OneSize
from lazytpu.engine.trace_cache.digest import canonical
from lazytpu.ir.forms import Range
from lazytpu.trace.extract import Slots
from lazytpu.trace.subtraces import SUBTRACES, Subtrace
from lazytpu.trace.trie import Operand, Record

FEW = (0, 1)
"Counts that are tried one by one: torch refuses the maximum of nothing, say. Forms of counts are those of others."


@dataclass
class _AtCounts:
    """A function at all counts, as a bucket is: `function(counts)` has its records."""

    function: Callable[[Mapping[str, int]], Subtrace]
    symbols: dict[str, Range]
    begins: frozenset[str] = frozenset()
    notes: dict[Any, Any] = field(default_factory=dict[Any, Any])
    seen: dict[tuple[int, ...], Subtrace] = field(default_factory=dict[tuple[int, ...], Subtrace])

    def subtrace(self, sizes: Mapping[str, int]) -> Subtrace:
        key = tuple(sizes.values())
        if key not in self.seen:
            self.seen[key] = self.function(sizes)
        return self.seen[key]

    def at(self, sizes: Mapping[str, int]) -> list[Record]:
        return list(self.subtrace(sizes).records)

    def with_room(self, samples: Sequence[dict[str, int]]) -> list[dict[str, int]]:
        return list(samples)


def counted(bounds: Mapping[str, int], function: Callable[[Mapping[str, int]], Subtrace]) -> str:
    """See `EnginePort.counted`."""
    at = _AtCounts(function, {name: (0, bound) for name, bound in bounds.items()})
    bound = at.subtrace(bounds)
    live = [result.slot for result in bound.results if isinstance(result, Operand)]
    refused = _refused(at, bounds)
    for number, (name, top) in enumerate(bounds.items()):
        least = next((size for size in FEW if ((number, size),) not in [few for few, *_ in refused]), len(FEW))
        at.symbols[name] = min(least, top), top

    def import_bound(identities: bool) -> Any:
        return import_trace(bound.records, live, (), identities=identities)

    made = padded_for(import_bound, at, tuple(live), True)
    imported = made.imported
    if any(dim.padded for dims in made.sized.results for dim in dims):
        raise OneSize("a result has a size that is counted")
    text = [(key, canonical(each.records), each.numbers, each.results) for key, each in sorted(at.seen.items())]
    name = hashlib.sha256(repr((sorted(bounds.items()), text, refused)).encode()).hexdigest()[:32]
    block = next(op for op in imported.module.ops if isinstance(op, FuncOp)).body.block
    inputs = [bound.inputs[slot] for slot in Slots(bound.records).inputs]
    packs = imported.packer(list(bound.numbers))
    checks = [(check.message, check.error) for check in imported.checks]
    COUNTED[name] = Counted(block, packs, inputs, len(bounds), checks, refused)
    SUBTRACES.setdefault(name, bound)
    return name


def _refused(at: _AtCounts, bounds: Mapping[str, int]) -> list[Refused]:
    """Which few counts torch refuses, alone or together, with what it says then. The other counts are the greatest."""
    found: list[Refused] = []
    for some in chain.from_iterable(combinations(enumerate(bounds), number + 1) for number in range(len(bounds))):
        for sizes in product(FEW, repeat=len(some)):
            few = tuple([(number, size) for (number, _), size in zip(some, sizes, strict=True)])
            if any(set(known) <= set(few) for known, _, _ in found):
                continue
            try:
                at.subtrace({**bounds, **{name: size for (_, name), size in zip(some, sizes, strict=True)}})
            except (RuntimeError, IndexError) as error:
                found.append((few, str(error), "IndexError" if isinstance(error, IndexError) else "RuntimeError"))
    return found
