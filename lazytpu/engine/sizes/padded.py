"""The module of a bucket: that of its bound, with notes of what is a size, made one for all sizes of the bucket."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from lazytpu.aten.errors import ImportFailure
from lazytpu.aten.importer import import_trace
from lazytpu.engine.launching.binding import Factors, Padding
from lazytpu.engine.sizes.buckets import bound
from lazytpu.engine.sizes.templates import Bucket, OneSize
from lazytpu.passes.padding.dims import Dim, Refused
from lazytpu.passes.padding.notes import Notes, annotate, notes_of
from lazytpu.passes.padding.pad_sizes import pad_sizes
from lazytpu.passes.padding.widen import widen


def pad(module: ModuleOp, bucket: Bucket, live: Sequence[int], bounds_checks: bool, packs: int) -> Padding:
    """Make the module of the bound one for all sizes of a bucket. `packs` of its arguments are packs of numbers.

    Raises OneSize where that cannot be; the module must be discarded then."""
    try:
        _annotate(module, bucket, tuple(live), bounds_checks)
        sized = pad_sizes(module)
    except (Refused, ImportFailure) as error:
        raise OneSize(str(error)) from error
    assert sized is not None
    sized = widen(module, sized, bound)
    arguments = tuple([_memory(dims) for dims in sized.arguments[packs:]])
    results = tuple([_memory(dims) for dims in sized.results[:-1]])
    return Padding(sized.symbols, arguments, results)


def _memory(dims: Sequence[Dim]) -> tuple[Factors, ...]:
    return tuple([tuple([(factor.size, str(factor.true)) for factor in dim.factors]) for dim in dims])


def _annotate(module: ModuleOp, bucket: Bucket, live: tuple[int, ...], bounds_checks: bool) -> None:
    """Write the notes of a template's programs on that of a bucket. Those of another bucket may have fitted there by
    chance, as where it has few sizes; then this one has its own. Raises Refused and ImportFailure."""
    notes, key = bucket.forms.notes, (live, bounds_checks)
    if key in notes:
        try:
            annotate(module, notes[key], bucket.symbols)
        except Refused:
            pass
        else:
            return
    notes[key] = _notes(bucket, live, bounds_checks)
    annotate(module, notes[key], bucket.symbols)


def _notes(bucket: Bucket, live: tuple[int, ...], bounds_checks: bool) -> Notes:
    """The notes of a program, made from it at a few sizes of a bucket. Where torch's op could not be at one of these,
    such as a slice that ends behind its tensor, the others must do."""
    modules: list[ModuleOp] = []
    at: list[dict[str, int]] = []
    samples = bucket.samples()
    for sizes in samples:
        if sizes in at:
            continue
        try:
            modules.append(import_trace(bucket.at(sizes), live, (), bounds_checks=bounds_checks).module)
        except ImportFailure:
            if sizes is samples[-1]:
                raise
            continue
        at.append(sizes)
    return notes_of(modules, at)
