"""The module of a bucket: the import at the bucket's bound with symbolic sizes, padded to serve every size of the
bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lazytpu.aten.importer import Imported
from lazytpu.engine.programs.binding import Factors, Padding
from lazytpu.engine.programs.expressions import Expressions
from lazytpu.engine.sizes.buckets import bound
from lazytpu.engine.sizes.kernels import with_kernels
from lazytpu.engine.sizes.templates import OneSize
from lazytpu.engine.sizes.templates import Sized as SizedTrace
from lazytpu.engine.sizes.verification import decompose, expressions_of
from lazytpu.ir.attention import AttentionBackwardOp, AttentionOp
from lazytpu.ir.forms import Range
from lazytpu.ir.symbolic import Derivation, LostSize
from lazytpu.passes.padding.annotations import annotate, read
from lazytpu.passes.padding.dims import Dim, Refused
from lazytpu.passes.padding.pad_sizes import Sized, pad_sizes
from lazytpu.passes.padding.walk import Refusal
from lazytpu.passes.padding.widen import widen
from lazytpu.trace.trie import Record

ATTENTION = frozenset((AttentionOp.name, AttentionBackwardOp.name))

Import = Callable[[Sequence[Record], bool], Imported]
"""A function that imports records, with or without identity ops (`import_trace`)."""


class Guarded(Refused):
    """Raised where the import takes another branch at some size than at the bound."""


@dataclass(frozen=True)
class Way:
    """The import strategy of a bucket's program: whether attention is decomposed, and whether identity ops are kept."""

    decomposed: bool = False
    identities: bool = False

    def after(self, error: Refused) -> Way:
        """Return the strategy to try after this one was refused with `error`; this one again if there is none."""
        if isinstance(error, Refusal) and error.op in ATTENTION:
            return replace(self, decomposed=True)
        return replace(self, identities=True) if isinstance(error, Guarded) else self


class ManySizes(Protocol):
    """A program with a range of sizes, such as a bucket."""

    @property
    def symbols(self) -> Mapping[str, Range]: ...
    @property
    def derived(self) -> Mapping[str, Range]:
        """Return the ranges of sizes over which the import is derived."""
        ...

    def symbolic(self, derivation: Derivation) -> list[Record]: ...


@dataclass(frozen=True)
class Made:
    """A padded program: its module, the result of `pad_sizes`, a `note` on its cost, and its size expressions."""

    imported: Imported
    sized: Sized
    note: str
    expressions: Expressions


def pad(imports: Import, trace: SizedTrace, bounds_checks: bool) -> tuple[Imported, Padding, tuple[str, ...]]:
    """Return the padded program of a trace's bucket, its binding, and notes for `lazytpu.explain()`.

    Raise OneSize if the program cannot be padded or does not serve the trace.
    """
    program = padded_for(imports, trace.bucket, bounds_checks, trace.sizes)
    imported, sized = program.imported, widen(program.imported.module, program.sized, bound)
    arguments = tuple([_memory(dims) for dims in sized.arguments[len(imported.packer.packs) :]])
    results = tuple([_memory(dims) for dims in sized.results[:-1]])
    return imported, Padding(sized.symbols, arguments, results, program.expressions), (program.note,)


def padded_for(imports: Import, many: ManySizes, bounds_checks: bool, sizes: Mapping[str, int] | None = None) -> Made:
    """Return the program at the bound, padded to serve all sizes of `many`, which include `sizes`.

    Attention is decomposed first if it supports no padding: with dropout, or if its bias has a gradient. Raise OneSize
    if the program cannot be padded.
    """
    strategy = Way()
    while True:
        try:
            return _padded(imports, many, bounds_checks, strategy, sizes)
        except LostSize as error:
            raise OneSize(str(error)) from error
        except Refused as error:
            next_strategy = strategy.after(error)
            if next_strategy == strategy:
                raise OneSize(str(error)) from error
            strategy = next_strategy


def _padded(imports: Import, many: ManySizes, bounds_checks: bool, way: Way, sizes: Mapping[str, int] | None) -> Made:
    """Import the program with one strategy and pad it. Raise Refused if the strategy fails."""
    # Import the records at the bound once, with symbolic sizes: every integer of the module carries its expression.
    with Derivation(many.derived) as derivation:
        imported = _imported(imports, many, derivation, way)
        reading = read(imported.module)
    guards = tuple(derivation.guards)

    # Where a guard fails the import takes another branch, so the program differs there. Most guards ask whether an
    # op is an identity.
    if guards and not way.identities:
        raise Guarded(f"the program of the bound is another one than where not {guards[0]}")
    if sizes is not None and (failing := next((guard for guard in guards if not guard.at(sizes)), None)):
        at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        raise Guarded(f"the program of the bound holds where {failing}, which is not so at {at}")

    annotate(imported.module, reading, many.symbols)
    before = sum(1 for _ in imported.module.walk())
    sized = pad_sizes(imported.module)
    assert sized is not None
    added = sum(1 for _ in imported.module.walk()) - before
    masks = f"{sized.masks} operands are masked, {sized.moves} moved into a row"
    note = f"padding: {masks}, {added} more of {before} ops"
    return Made(imported, sized, note, expressions_of(reading, guards, way.decomposed, way.identities, bounds_checks))


def _imported(imports: Import, many: ManySizes, derivation: Derivation, way: Way) -> Imported:
    """Import the records with symbolic sizes. Raise OneSize if the import fails at the bound."""
    try:
        imported = imports(with_kernels(many.symbolic(derivation)), way.identities)
    except LostSize:
        raise
    except Exception as error:  # such as a table smaller than the bound
        raise OneSize(f"at its bound, {error}") from error
    if way.decomposed:
        decompose(imported.module)
    return imported


def _memory(dims: Sequence[Dim]) -> tuple[Factors, ...]:
    """Return the factors of each dimension of an array in memory: the padded size and the text of the true one."""
    return tuple([tuple([(factor.size, str(factor.true)) for factor in dim.factors]) for dim in dims])
