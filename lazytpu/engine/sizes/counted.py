"""Functions whose sizes are counted on the device: the program at the greatest counts, padded to serve all counts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from xdsl.dialects.func import FuncOp

from lazytpu.aten.counted import COUNTED, Counted
from lazytpu.aten.importer import Imported, import_trace
from lazytpu.engine.sizes.buckets import OneSize
from lazytpu.engine.sizes.padded import Request, padded_for
from lazytpu.engine.sizes.skeletons import Integers, trace_apart, with_sizes
from lazytpu.engine.trace_cache.digest import canonical
from lazytpu.ir.symbolic import MIN_SYMBOL, Derivation, Guard, Size
from lazytpu.ports import AtCounts
from lazytpu.trace.extract import Slots
from lazytpu.trace.subtraces import SUBTRACES, Subtrace
from lazytpu.trace.trie import Operand, Record


def counted(bounds: Mapping[str, int], at: AtCounts, fixed: Mapping[str, int] | None = None) -> str:
    """Implement `EnginePort.counted`, with some counts `fixed`: return the digest of the function. Raise OneSize."""
    fixed = fixed or {}
    try:
        function, symbolic = at(fixed)
    except ValueError as error:
        raise OneSize(str(error)) from error
    names = list(bounds)
    if len(fixed) == len(names):
        return _known(function, repr(sorted(fixed.items())))

    # Counts below MIN_SYMBOL have functions of their own, or torch refuses them.
    small, refused = dict[tuple[int, int], str](), dict[tuple[int, int], tuple[str, str]]()
    first = max([names.index(name) + 1 for name in fixed], default=0)
    for number, name in list(enumerate(names))[first:]:
        for size in range(MIN_SYMBOL):
            try:
                small[number, size] = counted(bounds, at, {**fixed, name: size})
            except (RuntimeError, IndexError) as error:
                kind = "IndexError" if isinstance(error, IndexError) else "RuntimeError"
                refused[number, size] = str(error), kind

    # Import the program at the greatest counts, with symbolic counts.
    symbols = {name: (MIN_SYMBOL, top) for name, top in bounds.items() if name not in fixed}
    live = [result.slot for result in function.results if isinstance(result, Operand)]

    def imports(records: Sequence[Record]) -> Imported:
        return import_trace(records, live, (), identities=True)

    def with_counts(derivation: Derivation) -> list[Record]:
        records = [with_sizes(record, lambda size: derivation.size(size.form)) for record in symbolic]
        derivation.guards.clear()  # from comparisons of strides in layouts: no branch of the import depends on them
        return records

    padded = padded_for(Request(imports, symbols, with_counts))
    if padded.expressions.guards:  # the counts of a run are unknown here
        raise OneSize(f"it is another program unless {Guard.parse(padded.expressions.guards[0])}")
    imported = padded.imported
    if any(dim.padded for dims in padded.sized.results for dim in dims):
        raise OneSize("a result has a size that is counted")

    # The digest covers the records, the expressions of their integers, and the functions of small counts.
    trace_apart(symbolic, integers := Integers([], []))
    forms = [str(size.form) if type(size) is Size else size for size in integers.values]
    name = _known(function, repr((symbols, sorted(fixed.items()), forms, small, refused)))
    block = next(op for op in imported.module.ops if isinstance(op, FuncOp)).body.block
    inputs = [function.inputs[slot] for slot in Slots(function.records).inputs]
    packs = imported.packer(list(function.numbers))
    checks = [(check.message, check.error) for check in imported.checks]
    varying = [names.index(name) for name in symbols]
    COUNTED[name] = Counted(block, packs, inputs, len(bounds), varying, checks, small, refused)
    return name


def _known(function: Subtrace, more: str) -> str:
    """Register a function and return its digest."""
    text = repr((function.identity(canonical(function.records)), more))
    name = hashlib.sha256(text.encode()).hexdigest()[:32]
    SUBTRACES.setdefault(name, function)
    return name
