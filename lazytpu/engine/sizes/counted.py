"""Functions with sizes that are counted on the device: their program at the greatest counts, made one for all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product

import numpy as np
from xdsl.dialects.func import FuncOp

from lazytpu.aten.counted import COUNTED, Counted, Refused
from lazytpu.aten.importer import Imported, import_trace
from lazytpu.engine.sizes.fitting import fit
from lazytpu.engine.sizes.padded import padded_for
from lazytpu.engine.sizes.skeletons import LEAST, Integers, trace_apart, trace_together
from lazytpu.engine.sizes.templates import OneSize
from lazytpu.engine.trace_cache.digest import canonical
from lazytpu.ir.forms import Range
from lazytpu.ir.symbolic import Derivation, Guard
from lazytpu.trace.extract import Slots
from lazytpu.trace.subtraces import SUBTRACES, Subtrace
from lazytpu.trace.trie import Operand, Record

SAMPLES = 9
"Counts of each symbol, from the greatest on, at which the graph is captured."
FEW = (0, 1)
"Counts that are tried one by one: torch refuses the maximum of nothing, say. Forms of counts are those of others."


@dataclass
class _AtCounts:
    """A function at all counts, as a bucket is: `function(counts)` has its records."""

    function: Callable[[Mapping[str, int]], Subtrace]
    symbols: dict[str, Range]
    seen: dict[tuple[int, ...], Subtrace] = field(default_factory=dict[tuple[int, ...], Subtrace])

    def subtrace(self, sizes: Mapping[str, int]) -> Subtrace:
        key = tuple(sizes.values())
        if key not in self.seen:
            self.seen[key] = self.function(sizes)
        return self.seen[key]

    @property
    def derived(self) -> dict[str, Range]:
        """The counts over which the import is derived: those of at least `LEAST` have one path."""
        return {name: (min(LEAST, top), top) for name, (_, top) in self.symbols.items()}

    def symbolic(self, derivation: Derivation) -> list[Record]:
        """The records whose integers carry their forms, which those of a capture at other counts have, too. Raises
        OneSize where they have not."""
        at = self._sampled()
        captures = [self.subtrace(sizes).records for sizes in at]
        parts = [Integers([], []) for _ in at]
        skeletons = [trace_apart(records, into) for records, into in zip(captures, parts, strict=True)]
        if any(each != skeletons[0] for each in skeletons):
            raise OneSize("it is another graph at other counts")
        integers = [np.array(into.values, dtype=np.int64) for into in parts]
        varying = fit(integers, np.array(parts[0].kinds))
        if varying is None or any(varying.at(sizes) != each.tolist() for sizes, each in zip(at, integers, strict=True)):
            raise OneSize("what it computes of its counts is no form of these")
        return trace_together(captures[0], iter(varying.symbolic(derivation)))

    def _sampled(self) -> list[dict[str, int]]:
        """The greatest counts, some with one of them less, and some with all of them less."""
        tops = {name: top for name, (_, top) in self.derived.items()}
        fewer = {name: range(top - 1, max(low - 1, top - SAMPLES), -1) for name, (low, top) in self.derived.items()}
        half = {name: max(low, top // 2) for name, (low, top) in self.derived.items()}
        both = [{**tops, x: top - 1, y: other - 2} for (x, top), (y, other) in combinations(tops.items(), 2)]
        some = [{**tops, name: count} for name, counts in fewer.items() for count in counts]
        return [tops, *some, *[each for each in both if min(each.values()) >= LEAST], half]


def counted(bounds: Mapping[str, int], function: Callable[[Mapping[str, int]], Subtrace]) -> str:
    """See `EnginePort.counted`."""
    at = _AtCounts(function, {name: (0, bound) for name, bound in bounds.items()})
    bound = at.subtrace(bounds)
    live = [result.slot for result in bound.results if isinstance(result, Operand)]
    refused = _refused(at, bounds)
    for number, (name, top) in enumerate(bounds.items()):
        least = next((size for size in FEW if ((number, size),) not in [few for few, *_ in refused]), len(FEW))
        at.symbols[name] = min(least, top), top

    def imports(records: Sequence[Record], identities: bool) -> Imported:
        return import_trace(records, live, (), identities=identities)

    made = padded_for(imports, at, True)
    if made.expressions.guards:  # nobody knows the counts of a run
        raise OneSize(f"it is another program unless {Guard.parse(made.expressions.guards[0])}")
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
