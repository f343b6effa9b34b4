"""Functions with sizes that are counted on the device: their program at the greatest counts, made one for all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product

from xdsl.dialects.func import FuncOp

from lazytpu.aten.counted import COUNTED, Counted, Refused
from lazytpu.aten.importer import Imported, import_trace
from lazytpu.engine.sizes.graphs import with_sizes
from lazytpu.engine.sizes.padded import padded_for
from lazytpu.engine.sizes.skeletons import LEAST, Integers, trace_apart
from lazytpu.engine.sizes.templates import OneSize
from lazytpu.engine.trace_cache.digest import canonical
from lazytpu.ir.forms import Range
from lazytpu.ir.symbolic import Derivation, Guard, Size
from lazytpu.trace.extract import Slots
from lazytpu.trace.subtraces import SUBTRACES, Subtrace
from lazytpu.trace.trie import Operand, Record

FEW = (0, 1)
"Counts that are tried one by one: torch refuses the maximum of nothing, for example."


@dataclass(frozen=True)
class _AtCounts:
    """The records of a function at all counts, as a bucket has those of its sizes."""

    records: Sequence[Record]
    symbols: Mapping[str, Range]

    @property
    def derived(self) -> Mapping[str, Range]:
        """The counts over which the import is derived: those of at least `LEAST` have one path."""
        return {name: (min(LEAST, top), top) for name, (_, top) in self.symbols.items()}

    def symbolic(self, derivation: Derivation) -> list[Record]:
        records = [with_sizes(record, lambda size: derivation.size(size.form)) for record in self.records]
        derivation.guards.clear()  # layouts compare their strides: no path of the import depends on it
        return records


def counted(
    bounds: Mapping[str, int],
    function: Subtrace,
    symbolic: Sequence[Record],
    check: Callable[[Mapping[str, int]], None],
) -> str:
    """See `EnginePort.counted`. Raises OneSize."""
    # What torch refuses of few elements is refused when it runs; the other counts are those of the program.
    refused = _refused(check, bounds)
    alone = [few for few, *_ in refused]
    symbols = {
        name: (min(top, next((size for size in FEW if ((number, size),) not in alone), len(FEW))), top)
        for number, (name, top) in enumerate(bounds.items())
    }
    live = [result.slot for result in function.results if isinstance(result, Operand)]

    def imports(records: Sequence[Record], identities: bool) -> Imported:
        return import_trace(records, live, (), identities=identities)

    padded = padded_for(imports, _AtCounts(symbolic, symbols), True)
    if padded.expressions.guards:  # nobody knows the counts of a run
        raise OneSize(f"it is another program unless {Guard.parse(padded.expressions.guards[0])}")
    imported = padded.imported
    if any(dim.padded for dims in padded.sized.results for dim in dims):
        raise OneSize("a result has a size that is counted")

    # The function is known by its records, the forms of their numbers, and what it refuses.
    trace_apart(symbolic, integers := Integers([], []))
    forms = [str(size.form) if type(size) is Size else size for size in integers.values]
    text = sorted(bounds.items()), canonical(function.records), function.numbers, function.results, forms, refused
    name = hashlib.sha256(repr(text).encode()).hexdigest()[:32]
    block = next(op for op in imported.module.ops if isinstance(op, FuncOp)).body.block
    inputs = [function.inputs[slot] for slot in Slots(function.records).inputs]
    packs = imported.packer(list(function.numbers))
    checks = [(each.message, each.error) for each in imported.checks]
    COUNTED[name] = Counted(block, packs, inputs, len(bounds), checks, refused)
    SUBTRACES.setdefault(name, function)
    return name


def _refused(check: Callable[[Mapping[str, int]], None], bounds: Mapping[str, int]) -> list[Refused]:
    """Which few counts torch refuses, alone or together, with what it says then. The other counts are the greatest."""
    found: list[Refused] = []
    for some in chain.from_iterable(combinations(enumerate(bounds), number + 1) for number in range(len(bounds))):
        for sizes in product(FEW, repeat=len(some)):
            few = tuple([(number, size) for (number, _), size in zip(some, sizes, strict=True)])
            if any(set(known) <= set(few) for known, _, _ in found):
                continue
            try:
                check({**bounds, **{name: size for (_, name), size in zip(some, sizes, strict=True)}})
            except (RuntimeError, IndexError) as error:
                found.append((few, str(error), "IndexError" if isinstance(error, IndexError) else "RuntimeError"))
    return found
