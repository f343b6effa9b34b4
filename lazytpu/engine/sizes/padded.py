"""The module of a bucket: that of its bound, imported with symbolic sizes and made one for all sizes of the bucket."""

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
"Imports records, with or without ops that change nothing (`import_trace`)."


class Guarded(Refused):
    """The import takes another path at some sizes than at the bound."""


@dataclass(frozen=True)
class Way:
    """How the program of a bucket is imported: with attention decomposed, and with ops that change nothing."""

    decomposed: bool = False
    identities: bool = False

    def after(self, error: Refused) -> Way:
        """The way to try after what this one was refused for; the same if there is none."""
        if isinstance(error, Refusal) and error.op in ATTENTION:
            return replace(self, decomposed=True)
        return replace(self, identities=True) if isinstance(error, Guarded) else self


class ManySizes(Protocol):
    """A program at many sizes: a bucket, for one."""

    @property
    def symbols(self) -> Mapping[str, Range]: ...
    @property
    def derived(self) -> Mapping[str, Range]:
        """The sizes over which the import is derived."""
        ...
    def symbolic(self, derivation: Derivation) -> list[Record]: ...


@dataclass(frozen=True)
class Made:
    """A program made one for all sizes: its module, what `pad_sizes` did to it, a `note` about that, and its
    expressions."""

    imported: Imported
    sized: Sized
    note: str
    expressions: Expressions


def pad(imports: Import, trace: SizedTrace, bounds_checks: bool) -> tuple[Imported, Padding, tuple[str, ...]]:
    """The program of the bound, made one for all sizes of the bucket that a trace is in, and what `lazytpu.explain()`
    says of it. Raises OneSize where that cannot be, or where the program does not serve the trace."""
    made = padded_for(imports, trace.bucket, bounds_checks, trace.sizes)
    imported, sized = made.imported, widen(made.imported.module, made.sized, bound)
    arguments = tuple([_memory(dims) for dims in sized.arguments[len(imported.packer.packs) :]])
    results = tuple([_memory(dims) for dims in sized.results[:-1]])
    return imported, Padding(sized.symbols, arguments, results, made.expressions), (made.note,)


def padded_for(
    imports: Import, many: ManySizes, bounds_checks: bool, sizes: Mapping[str, int] | None = None
) -> Made:
    """The program of the bound, made one for all sizes, which include these. Attention that bears no padding, as with
    dropout, or where its bias has a gradient, is decomposed first. Raises OneSize where that cannot be."""
    way = Way()
    while True:
        try:
            return _padded(imports, many, bounds_checks, way, sizes)
        except LostSize as error:
            raise OneSize(str(error)) from error
        except Refused as error:
            other = way.after(error)
            if other == way:
                raise OneSize(str(error)) from error
            way = other


def _padded(
    imports: Import, many: ManySizes, bounds_checks: bool, way: Way, sizes: Mapping[str, int] | None
) -> Made:
    # Import the records of the bound with symbolic sizes, once: every integer of the module comes with its form.
    with Derivation(many.derived) as derivation:
        imported = _imported(imports, many, derivation, way)
        reading = read(imported.module)
    guards = tuple(derivation.guards)

    # Where a guard fails the import takes another path: the program is another one there. Most guards ask whether an
    # op changes nothing.
    if guards and not way.identities:
        raise Guarded(f"the program of the bound is another one than where not {guards[0]}")
    if sizes is not None and (failing := next((guard for guard in guards if not guard.at(sizes)), None)):
        at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        raise Guarded(f"the program of the bound holds where {failing}, which is not so at {at}")

    annotate(imported.module, reading, many.symbols)
    before = sum(1 for _ in imported.module.walk())
    sized = pad_sizes(imported.module)
    assert sized is not None
    more = sum(1 for _ in imported.module.walk()) - before
    masks = f"{sized.masks} operands are masked, {sized.moves} moved into a row"
    note = f"padding: {masks}, {more} more of {before} ops"
    return Made(imported, sized, note, expressions_of(reading, guards, way.decomposed, way.identities, bounds_checks))


def _imported(imports: Import, many: ManySizes, derivation: Derivation, way: Way) -> Imported:
    try:
        imported = imports(with_kernels(many.symbolic(derivation)), way.identities)
    except LostSize:
        raise
    except Exception as error:  # as where a table is smaller than the bound
        raise OneSize(f"at its bound, {error}") from error
    if way.decomposed:
        decompose(imported.module)
    return imported


def _memory(dims: Sequence[Dim]) -> tuple[Factors, ...]:
    return tuple([tuple([(factor.size, str(factor.true)) for factor in dim.factors]) for dim in dims])
