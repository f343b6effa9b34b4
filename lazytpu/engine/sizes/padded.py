"""The module of a bucket: that of its bound, with notes of what is a size, made one for all sizes of the bucket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lazytpu.aten.importer import Imported
from lazytpu.engine.launching.binding import Factors, Padding
from lazytpu.engine.sizes.buckets import bound
from lazytpu.engine.sizes.expressions import Expressions, Verified
from lazytpu.engine.sizes.kernels import with_kernels
from lazytpu.engine.sizes.samples import greatest, more_samples, samples
from lazytpu.engine.sizes.templates import OneSize
from lazytpu.engine.sizes.templates import Sized as SizedTrace
from lazytpu.engine.sizes.verification import ImportedAt, compare, decompose, expressions_of, served
from lazytpu.ir.attention import AttentionBackwardOp, AttentionOp
from lazytpu.ir.forms import Range
from lazytpu.passes.padding.dims import Dim, Refused
from lazytpu.passes.padding.notes import PERIOD, Notes, OtherOps, Reading, Unsettled, annotate, notes_of, read
from lazytpu.passes.padding.pad_sizes import Sized, pad_sizes
from lazytpu.passes.padding.walk import Refusal
from lazytpu.passes.padding.widen import widen
from lazytpu.trace.trie import Record

ATTENTION = frozenset((AttentionOp.name, AttentionBackwardOp.name))


@dataclass(frozen=True)
class Way:
    """How the program of a bucket is imported: with attention decomposed, and with ops that change nothing."""

    decomposed: bool = False
    identities: bool = False

    def after(self, error: Refusal) -> Way:
        """The way to try after what this one was refused for; the same if there is none."""
        if error.op in ATTENTION:
            return replace(self, decomposed=True)
        return replace(self, identities=True) if isinstance(error, OtherOps) else self


Import = Callable[[bool], Imported]
"Imports the program of the bound, with or without ops that change nothing."


class ManySizes(Protocol):
    """A program at many sizes: a bucket, for one."""

    @property
    def symbols(self) -> Mapping[str, Range]: ...
    @property
    def begins(self) -> frozenset[str]: ...
    @property
    def notes(self) -> dict[Any, Any]: ...
    def at(self, sizes: Mapping[str, int]) -> list[Record]: ...
    def with_room(self, samples: Sequence[dict[str, int]]) -> list[dict[str, int]]: ...


def pad(
    import_bound: Import, trace: SizedTrace, live: Sequence[int], bounds_checks: bool
) -> tuple[Imported, Padding, tuple[str, ...]]:
    """The program of the bound, made one for all sizes of the bucket that a trace is in, and what `lazytpu.explain()`
    says of it. It is right for this trace, and for those that earlier programs of the bucket got wrong. Raises OneSize
    where that cannot be."""
    bucket = trace.bucket
    traces = [trace, *bucket.wrong]
    made = padded_for(import_bound, bucket, tuple(live), bounds_checks, traces)
    imported, sized = made.imported, widen(made.imported.module, made.sized, bound)
    arguments = tuple([_memory(dims) for dims in sized.arguments[len(imported.packer.packs) :]])
    results = tuple([_memory(dims) for dims in sized.results[:-1]])
    at = [tuple([each.sizes[name] for name in sized.symbols]) for each in traces]
    verified = Verified(dict(zip(at, made.messages, strict=True)))
    return imported, Padding(sized.symbols, arguments, results, made.expressions, verified), (made.note,)


@dataclass(frozen=True)
class Made:
    """A program made one for all sizes: its module, what `pad_sizes` did to it, a `note` about that, its expressions,
    and the messages of its checks at the sizes of the traces that it was compared with."""

    imported: Imported
    sized: Sized
    note: str
    expressions: Expressions
    messages: list[tuple[str, ...]]


def padded_for(
    import_bound: Import, many: ManySizes, live: tuple[int, ...], bounds_checks: bool, traces: Sequence[SizedTrace] = ()
) -> Made:
    """The program of the bound, made one for all sizes, and right for some `traces`. Attention that bears no padding,
    as with dropout, or where its bias has a gradient, is decomposed first.

    Raises OneSize where that cannot be."""
    way = Way()
    while True:
        try:
            imported = _at_bound(import_bound, way)
            expressions, messages = _annotate(imported, many, live, bounds_checks, way, traces)
            before = sum(1 for _ in imported.module.walk())
            sized = pad_sizes(imported.module)
        except Refusal as error:
            other = way.after(error)
            if other == way:
                raise OneSize(str(error)) from error
            way = other
        except Refused as error:
            raise OneSize(str(error)) from error
        else:
            assert sized is not None
            more = sum(1 for _ in imported.module.walk()) - before
            masks = f"{sized.masks} operands are masked, {sized.moves} moved into a row"
            return Made(imported, sized, f"padding: {masks}, {more} more of {before} ops", expressions, messages)


def _at_bound(import_bound: Import, way: Way) -> Imported:
    try:
        imported = import_bound(way.identities)
    except Exception as error:  # as where a table is smaller than the bound
        raise OneSize(f"at its bound, {error}") from error
    if way.decomposed:
        decompose(imported.module)
    return imported


def _memory(dims: Sequence[Dim]) -> tuple[Factors, ...]:
    return tuple([tuple([(factor.size, str(factor.true)) for factor in dim.factors]) for dim in dims])


def _annotate(
    imported: Imported,
    many: ManySizes,
    live: tuple[int, ...],
    bounds_checks: bool,
    way: Way,
    traces: Sequence[SizedTrace],
) -> tuple[Expressions, list[tuple[str, ...]]]:
    """Write the notes of a template's programs on that of a bucket, and compare them with some traces: the expressions,
    and the messages of checks there. Those of another bucket may have fitted there by chance, as where it has few
    sizes, or larger ones, of which rounding may make one number; then this one has its own. Raises Refused."""

    def import_at(sizes: dict[str, int], records: list[Record]) -> ImportedAt:
        return ImportedAt.of(sizes, records, live, bounds_checks, (way.decomposed, way.identities))

    def annotated(own: Notes) -> tuple[Expressions, list[tuple[str, ...]]]:
        expressions = expressions_of(own, at_bound, way.decomposed, way.identities, bounds_checks)
        found = [compare(expressions, imported.packer.entries, imported.checks, trace) for trace in seen]
        annotate(imported.module, own, many.symbols, at_bound)
        return expressions, found

    at_bound = read(imported.module)
    try:
        seen = [import_at(trace.sizes, served(trace)) for trace in traces]
    except Exception as error:  # whatever the import of an op raises: the exact program raises it for the user
        raise OneSize(f"it cannot be imported: {error}") from error
    notes, key = many.notes, (live, bounds_checks, way)
    if key in notes and notes[key].may_hold(many.symbols):
        try:
            return annotated(notes[key])
        except Refused:
            pass
    readings = {tuple({name: high for name, (_, high) in many.symbols.items()}.items()): at_bound}
    readings.update({tuple(trace.sizes.items()): trace.reading for trace in seen})

    def read_at(sizes: dict[str, int]) -> Reading:
        return import_at(sizes, with_kernels(many.at(sizes))).reading

    notes[key] = _notes(many, read_at, [dict(sizes) for sizes in readings], list(readings.values()))
    return annotated(notes[key])


def _notes(
    many: ManySizes, read_at: Callable[[dict[str, int]], Reading], at: list[dict[str, int]], readings: list[Reading]
) -> Notes:
    """The notes of a program, made from its `readings` where it was seen, and from it at a few sizes of a bucket; at
    more where these show no form, or several."""
    _read_at(read_at, many.with_room(samples(many.symbols, many.begins)), readings, at)
    beside = greatest(many.symbols, PERIOD, many.begins)
    looked_at_more = False
    while True:
        try:
            return notes_of(readings, at, beside)
        except OtherOps:
            raise
        except Unsettled as error:
            _read_at(read_at, [*many.with_room([beside.pop(error.number)]), at[-1]], readings, at)
        except Refused:
            if looked_at_more:
                raise
            looked_at_more = True
            _read_at(read_at, [*many.with_room(more_samples(many.symbols, many.begins)), at[-1]], readings, at)


def _read_at(
    read_at: Callable[[dict[str, int]], Reading],
    samples: Sequence[dict[str, int]],
    readings: list[Reading],
    at: list[dict[str, int]],
) -> None:
    """Read the program at some sizes. Where torch's op could not be at one of these, such as a slice that ends behind
    its tensor, the others must do."""
    for sizes in samples:
        if sizes in at:
            continue
        try:
            readings.append(read_at(sizes))
        except Exception as error:  # whatever torch raises where an op cannot have these sizes
            if sizes is samples[-1]:
                raise OneSize(f"at {sizes}, {error}") from error
            continue
        at.append(sizes)
