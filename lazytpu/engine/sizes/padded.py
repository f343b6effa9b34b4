"""The module of a bucket: that of its bound, with notes of what is a size, made one for all sizes of the bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from lazytpu.aten.importer import Imported, import_trace
from lazytpu.engine.launching.binding import Factors, Padding
from lazytpu.engine.sizes.buckets import bound
from lazytpu.engine.sizes.templates import Bucket, OneSize
from lazytpu.ir.attention import AttentionBackwardOp, AttentionOp
from lazytpu.passes.attention.decompose_attention import DecomposeAttentionPass
from lazytpu.passes.padding.dims import Dim, Refused
from lazytpu.passes.padding.notes import Notes, annotate, notes_of
from lazytpu.passes.padding.pad_sizes import pad_sizes
from lazytpu.passes.padding.walk import Refusal
from lazytpu.passes.padding.widen import widen

ATTENTION = frozenset((AttentionOp.name, AttentionBackwardOp.name))


def pad(
    import_bound: Callable[[], Imported], bucket: Bucket, live: Sequence[int], bounds_checks: bool
) -> tuple[Imported, Padding, tuple[str, ...]]:
    """The program of the bound, made one for all sizes of a bucket, and what `lazytpu.explain()` says of it. Attention
    that bears no padding, as with dropout, or where its bias has a gradient, is decomposed first.

    Raises OneSize where that cannot be."""
    try:
        try:
            return _padded(_at_bound(import_bound), bucket, tuple(live), bounds_checks, False)
        except Refusal as error:
            if error.op not in ATTENTION:
                raise
            return _padded(_at_bound(import_bound), bucket, tuple(live), bounds_checks, True)
    except Refused as error:
        raise OneSize(str(error)) from error


def _at_bound(import_bound: Callable[[], Imported]) -> Imported:
    try:
        return import_bound()
    except Exception as error:  # as where a table is smaller than the bound
        raise OneSize(f"at its bound, {error}") from error


def _padded(
    imported: Imported, bucket: Bucket, live: tuple[int, ...], bounds_checks: bool, decomposed: bool
) -> tuple[Imported, Padding, tuple[str, ...]]:
    module, packs = imported.module, len(imported.packer.packs)
    if decomposed:
        _decompose(module)
    annotate(module, _notes(bucket, live, bounds_checks, decomposed), bucket.symbols)
    before = sum(1 for _ in module.walk())
    sized = pad_sizes(module)
    assert sized is not None
    more = sum(1 for _ in module.walk()) - before
    note = f"padding: {sized.masks} operands are masked, {sized.moves} moved into a row, {more} more of {before} ops"
    sized = widen(module, sized, bound)
    arguments = tuple([_memory(dims) for dims in sized.arguments[packs:]])
    results = tuple([_memory(dims) for dims in sized.results[:-1]])
    return imported, Padding(sized.symbols, arguments, results), (note,)


def _decompose(module: ModuleOp) -> None:
    DecomposeAttentionPass().apply(Context(), module)


def _memory(dims: Sequence[Dim]) -> tuple[Factors, ...]:
    return tuple([tuple([(factor.size, str(factor.true)) for factor in dim.factors]) for dim in dims])


def _notes(bucket: Bucket, live: tuple[int, ...], bounds_checks: bool, decomposed: bool) -> Notes:
    """The notes of a template's programs, made from the program at a few sizes; where these show no form, at more."""
    notes = bucket.template.notes
    key = live, bounds_checks, decomposed
    if key not in notes:
        modules: list[ModuleOp] = []
        at: list[dict[str, int]] = []
        for number, samples in enumerate((bucket.samples(), bucket.more_samples())):
            old = len(modules)
            _import_at(bucket, samples, live, bounds_checks, modules, at)
            for module in modules[old:] if decomposed else ():
                _decompose(module)
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
        except Exception as error:
            if sizes is samples[-1]:
                raise OneSize(f"at {sizes}, {error}") from error
            continue
        at.append(sizes)
