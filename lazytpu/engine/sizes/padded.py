"""The module of a bucket: that of its bound, with notes of what is a size, made one for all sizes of the bucket."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

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
        annotate(module, _notes(bucket, tuple(live), bounds_checks), bucket.symbols)
        sized = pad_sizes(module)
    except Refused as error:
        raise OneSize(str(error)) from error
    assert sized is not None
    sized = widen(module, sized, bound)
    arguments = tuple([_memory(dims) for dims in sized.arguments[packs:]])
    results = tuple([_memory(dims) for dims in sized.results[:-1]])
    return Padding(sized.symbols, arguments, results)


def _memory(dims: Sequence[Dim]) -> tuple[Factors, ...]:
    return tuple([tuple([(factor.size, str(factor.true)) for factor in dim.factors]) for dim in dims])


def _notes(bucket: Bucket, live: tuple[int, ...], bounds_checks: bool) -> Notes:
    """The notes of a template's programs, made from the program at a few sizes; where these show no form, at more."""
    notes = bucket.template.notes
    key = live, bounds_checks
    if key not in notes:
        modules: list[ModuleOp] = []
        at: list[dict[str, int]] = []
        for number, samples in enumerate((bucket.samples(), bucket.more_samples())):
            _import_at(bucket, samples, live, bounds_checks, modules, at)
            try:
                notes[key] = notes_of(modules, at)
                break
            except Refused:
                if number:
                    raise
    return notes[key]


def _import_at(
    bucket: Bucket,
    samples: Sequence[dict[str, int]],
    live: tuple[int, ...],
    bounds_checks: bool,
    modules: list[ModuleOp],
    at: list[dict[str, int]],
) -> None:
    """Import the program at some sizes. Where torch's op could not be at one of these, such as a slice that ends behind
    its tensor, the others must do."""
    for sizes in samples:
        if sizes in at:
            continue
        try:
            modules.append(import_trace(bucket.at(sizes), live, (), bounds_checks=bounds_checks).module)
        except Exception as error:  # noqa: BLE001  (whatever torch raises where an op cannot have these sizes)
            if sizes is samples[-1]:
                raise OneSize(f"at {sizes}, {error}") from error
            continue
        at.append(sizes)
