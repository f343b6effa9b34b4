"""The module of a bucket: the import at the bucket's bound with symbolic sizes, padded to serve every size of the
bucket."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from lazytpu.aten.errors import ImportFailure
from lazytpu.aten.importer import Imported
from lazytpu.engine.errors.unexpected import note_bug
from lazytpu.engine.programs.binding import Factors, Padding
from lazytpu.engine.programs.expressions import Expressions
from lazytpu.engine.recompiles.wording import at
from lazytpu.engine.sizes.buckets import OneSize, bound
from lazytpu.engine.sizes.templates import Sized as SizedTrace
from lazytpu.engine.sizes.verification import decompose, expressions_of
from lazytpu.ir.attention import AttentionBackwardOp, AttentionOp
from lazytpu.ir.forms import Range
from lazytpu.ir.jax_call import JaxCallOp
from lazytpu.ir.rebinding import rebuilt
from lazytpu.ir.shape import ReshapeOp, SliceOp
from lazytpu.ir.sizes import set_symbols
from lazytpu.ir.symbolic import Derivation, Guard, LostSize
from lazytpu.passes.padding.annotations import annotate, read
from lazytpu.passes.padding.dims import Dim, Refused
from lazytpu.passes.padding.pad_sizes import Sized, pad_sizes
from lazytpu.passes.padding.walk import Refusal
from lazytpu.passes.padding.widen import widen
from lazytpu.trace.trie import Record

ATTENTION = frozenset((AttentionOp.name, AttentionBackwardOp.name))


@dataclass(frozen=True)
class Request:
    """The program of records at the bound, to be padded to serve all sizes of its symbols.

    - `imports` imports records, with identity ops (`import_trace`), and `symbolic` returns them with symbolic sizes.
    - `sizes`, if given, are served for certain. Comparisons are answered for `possible` sizes, by default the bound.
    - Programs with an equal `key` have the same import at other bounds.
    """

    imports: Callable[[Sequence[Record]], Imported]
    symbols: Mapping[str, Range]
    symbolic: Callable[[Derivation], list[Record]]
    bounds_checks: bool = True
    sizes: Mapping[str, int] | None = None
    key: Hashable = None
    possible: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Derived:
    """An annotated import at the bound of `derivation`, and its size expressions. Each bucket gets a copy of its module
    (`lazytpu.ir.rebinding`)."""

    imported: Imported
    derivation: Derivation
    expressions: Expressions
    copied: bool
    """Whether it serves other bounds: custom kernels are other ones there."""

    def at(self, bound: Mapping[str, int]) -> Imported:
        """Return the import at another bound, where all comparisons have the same answers."""
        return replace(self.imported, module=rebuilt(self.imported.module, self.derivation, bound))


DERIVED: dict[Any, Derived] = {}
"""The newest imports, at most `KEPT`, by the traces and the slots and names of their program."""
KEPT = 8
NOTED = 4
"""The number of guards that notes for `lazytpu.explain()` list."""


@dataclass(frozen=True)
class Made:
    """A padded program: its module, the result of `pad_sizes`, its size expressions, and `notes` on its guards."""

    imported: Imported
    sized: Sized
    expressions: Expressions
    notes: tuple[str, ...]


def pad(
    imports: Callable[[Sequence[Record]], Imported], trace: SizedTrace, bounds_checks: bool
) -> tuple[Imported, Padding, tuple[str, ...]]:
    """Return the padded program of a trace's bucket, its binding, and notes for `lazytpu.explain()`.

    Raise OneSize if the program cannot be padded or does not serve the trace.
    """
    bucket, forms, sizes = trace.bucket, trace.bucket.forms, trace.sizes
    possible = sizes if forms.varying.parts else None
    key = forms, imports
    program = padded_for(Request(imports, bucket.symbols, forms.symbolic, bounds_checks, sizes, key, possible))
    imported, sized = program.imported, widen(program.imported.module, program.sized, bound)
    arguments = tuple([_memory(dims) for dims in sized.arguments[len(imported.packer.packs) :]])
    results = tuple([_memory(dims) for dims in sized.results[:-1]])
    return imported, Padding(sized.symbols, arguments, results, program.expressions), (sized.note, *program.notes)


def padded_for(request: Request, decomposed: bool = False) -> Made:
    """Return the padded program. Raise OneSize if it cannot be padded.

    Attention is `decomposed` if it supports no padding: with dropout, or if its bias has a gradient.
    """
    try:
        return _padded(request, decomposed)
    except LostSize as error:
        raise OneSize(str(error), "" if error.record is None else at(error.record)) from error
    except Refusal as error:
        if decomposed or error.op not in ATTENTION:
            raise OneSize(error.reason, error.place) from error
    except Refused as error:
        raise OneSize(str(error)) from error
    return padded_for(request, decomposed=True)


def _padded(request: Request, decomposed: bool) -> Made:
    """Import the program, with attention decomposed or not, and pad it. Raise Refused if that fails."""
    key, symbols, sizes = (request.key, decomposed), request.symbols, request.sizes
    derivation, derived = Derivation(symbols, possible=request.possible), DERIVED.get(key)
    if derived is None or not derivation.follows(derived.derivation):
        # Import the records at the bound once, with symbolic sizes: every integer of the module carries its expression.
        with Derivation(symbols, possible=request.possible) as derivation:
            derived = _derived(request, derivation, decomposed)
    imported = derived.at(derivation.bound)

    # Where a guard fails the import takes another branch, so the program differs there.
    guards = tuple(derivation.guards)
    if sizes is not None and (failing := next((guard for guard in guards if not guard.at(sizes)), None)):
        here = ", ".join(f"{name} = {size}" for name, size in sizes.items())
        reason = f"it branches on a size: the program of the bound holds where {failing}, not at {here}"
        raise OneSize(reason, _branches(failing, derived))

    set_symbols(imported.module, symbols)
    sized = pad_sizes(imported.module)
    assert sized is not None
    # Keep the import for other buckets. Its module is not the padded one, which passes rewrite.
    if request.key is not None and derived.copied:
        DERIVED.pop(key, None)
        DERIVED[key] = derived
        while len(DERIVED) > KEPT:
            del DERIVED[next(iter(DERIVED))]
    expressions = replace(derived.expressions, guards=tuple([guard.fields for guard in guards]))
    branches = [f"{guard} in {_branches(guard, derived) or 'torch'}" for guard in guards[:NOTED]]
    notes = (f"it serves the sizes where {', '.join(branches)}",) if branches else ()
    return Made(imported, sized, expressions, notes)


def _branches(guard: Guard, derived: Derived) -> str:
    """Return the op that branches by a guard, with its line; empty if it is no op of the trace."""
    record = derived.derivation.compared_by.get((guard.form, guard.relation))
    return "" if record is None else at(record)


def _derived(request: Request, derivation: Derivation, decomposed: bool) -> Derived:
    """Import records with symbolic sizes. Raise OneSize if the import fails at the bound."""
    records = request.symbolic(derivation)
    try:
        imported = request.imports(records)
    except LostSize:
        raise
    except ImportFailure as error:
        note_bug("importing an op at its bound", error)
        raise OneSize(f"at its bound, {error.__cause__}", at(error.record)) from error
    except Exception as error:  # such as a table smaller than the bound
        note_bug("importing a trace at its bound", error)
        raise OneSize(f"at its bound, {error}") from error
    if decomposed:
        decompose(imported.module)
    reading = read(imported.module)
    annotate(imported.module, reading)
    _drop_identities(imported.module)
    expressions = expressions_of(reading, decomposed, request.bounds_checks)
    copied = not any(isinstance(op, JaxCallOp) for op in imported.module.walk())
    return Derived(imported, derivation, expressions, copied)


def _drop_identities(module: ModuleOp) -> None:
    """Drop the reshapes and slices that change nothing at all sizes: types of equal expressions are one object."""
    for op in list(module.walk()):
        if isinstance(op, ReshapeOp | SliceOp) and op.operands[0].type is op.results[0].type:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.detach()
            op.erase()


def _memory(dims: Sequence[Dim]) -> tuple[Factors, ...]:
    """Return the factors of each dimension of an array in memory: the padded size and the text of the true one."""
    return tuple([tuple([(factor.size, str(factor.true)) for factor in dim.factors]) for dim in dims])
