"""Templates, which are JAX functions that passes cannot inspect. Their support for padding is known by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan

from xdsl.ir import SSAValue

from lazytpu.ir.template import TemplateOp
from lazytpu.ir.types import dtype_of, extremes, is_float, shape_of
from lazytpu.passes.padding.dims import Dim, Number, Refused, contiguous, merged_all, static
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Result, Walk, rule

ELEMENTWISE = frozenset(
    ("airy_ai", "bessel_i0", "bessel_i0e", "bessel_i1", "bessel_j0", "bessel_j1", "bessel_k", "bessel_y0", "bessel_y1")
    + ("chebyshev_polynomial", "erfcx", "gcd", "hermite_polynomial", "igamma", "igammac", "laguerre_polynomial")
    + ("legendre_polynomial", "log_ndtr", "ndtri", "spherical_bessel_j0", "trigamma", "zeta_at_extremes")
)
"""Elementwise templates."""
MATRICES = "cholesky eig eigh geqrf ldl_factor lu matrix_exp qr svd svdvals".split()
BATCHED: Mapping[str, tuple[int, ...]] = dict.fromkeys(MATRICES, (2,)) | {
    "fft": (0,), "householder_product": (2, 1), "ldl_solve": (2, 1, 2), "pivots_to_permutation": (1,), "top_k": (1,),
    "triangular_solve": (2, 2),
}  # fmt: skip
"""Templates that work on each matrix or row of a batch, with the rank of a batch element, by operand. A transform has
as many dimensions as lengths."""
WINDOWED: Mapping[str, Number] = {"max_pool": -inf, "window_sum": 0}
"""Templates of windows over all dimensions but the first, with the value that leaves windows unchanged."""
OF_PLANES = (*WINDOWED, "fractional_max_pool", "grid_sampler", "grid_sampler_backward", "max_pool_backward")
"""Templates that work on each element of the first dimension."""


OWN: dict[str, Callable[[Walk, TemplateOp], Result]] = {}
"""The rules of templates that support padding in more than the batch, by name."""


def in_template(*names: str) -> Callable[[Callable[[Walk, TemplateOp], Result]], Callable[[Walk, TemplateOp], Result]]:
    """Register the rule of these templates."""

    def register(function: Callable[[Walk, TemplateOp], Result]) -> Callable[[Walk, TemplateOp], Result]:
        OWN.update(dict.fromkeys(names, function))
        return function

    return register


@rule(TemplateOp)
def template(w: Walk, op: TemplateOp) -> Sequence[Padded] | None:
    """Apply the rule of a template by its name."""
    name, dims = op.template_name.data, [w.dims(x) for x in op.operands]
    if name in ELEMENTWISE and all(shape_of(x) == shape_of(op.results[0]) for x in op.operands):
        return _elementwise(w, op)
    batch = None if name == "cholesky" else _batch(op, name)  # Cholesky is slow for a matrix of zeros
    if batch is not None and not any(dim.padded for axes, rank in zip(dims, batch, strict=True) for dim in axes[rank:]):
        return _of_batch(w, op, batch)
    if name not in OWN:
        raise Refused(f"the template {name!r} reads all elements, padding included")
    if "high" in op.sized:  # the reach of the last windows after the end only determines the number of windows
        w.forms(op, "high", op.arguments["high"])
    return OWN[name](w, op)


def _elementwise(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Set padding to 1: a series or recurrence runs until it has converged for all elements."""
    dims = merged_all([w.dims(x) for x in op.operands])
    for index in range(len(op.operands)):
        w.mask_operand(op, index, range(len(dims)), 1, dims)
    return [Padded(dims)]


def _batch(op: TemplateOp, name: str) -> list[int] | None:
    """Return the number of batch dimensions of each operand; None if the template has no batches."""
    ranks = [len(shape_of(x)) for x in op.operands]
    if name == "searchsorted":  # a single row is searched for all values
        return None if ranks[0] == 1 else [rank - 1 for rank in ranks]
    if name in OF_PLANES:
        return [1] * len(ranks)
    if name not in BATCHED:
        return None
    element_ranks = (len(op.arguments["lengths"]),) if name == "fft" else BATCHED[name]
    return [rank - of for rank, of in zip(ranks, element_ranks, strict=True)]


def _of_batch(w: Walk, op: TemplateOp, batch: Sequence[int]) -> Sequence[Padded]:
    """Set padding to zeros, for which every algorithm terminates."""
    (rank, *later_ranks) = batch
    if any(batch_rank != rank for batch_rank in later_ranks):
        raise Refused("the operands of a template have batches of other dimensions")
    dims = merged_all([w.dims(x)[:rank] for x in op.operands])
    for index, x in enumerate(op.operands):
        w.mask_operand(op, index, range(rank), 0, (*dims, *w.dims(x)[rank:]))
    return [Padded((*dims, *static(shape_of(x)[rank:]))) for x in op.results]


@in_template("complex_logcumsumexp", "cumulative_logsumexp")
def _scanned(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Scan true elements before padding."""
    dims = w.dims(op.operands[0])
    along: int = op.arguments["dim"]
    contiguous(dims[along])
    return [Padded(tuple([dim.settled if i == along else dim for i, dim in enumerate(dims)]))]


def _greatest(x: SSAValue) -> Number:
    """Return the greatest key of a value's dtype."""
    return nan if is_float(dtype_of(x)) else extremes(dtype_of(x))[1]


@in_template("searchsorted")
def _searched(w: Walk, op: TemplateOp) -> Sequence[Padded] | None:
    """Pass the true length of the row to the search. Another length would change the order of comparisons, which NaN
    reveals."""
    sequence, values = (w.dims(x) for x in op.operands)
    length = sequence[-1]
    contiguous(length)
    batch = merged_all([sequence[:-1], values[:-1]]) if len(sequence) > 1 else ()
    b, out = w.builder, op.results[0]
    operands = [*op.operands, w.number(length.total, "i32")]
    positions = b.template("searchsorted", operands, [(dtype_of(out), shape_of(out))], **op.arguments)[0]
    dims = tuple([dim.settled for dim in values]) if not batch else (*batch, values[-1].settled)
    w.replace(op, positions, Padded(dims))
    return None


@in_template("lexicographic_order")
def _ordered(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Put rows of padding last, with all columns of padding equal."""
    rows, columns = w.dims(op.operands[0])
    contiguous(rows, columns)
    w.mask_operand(op, 0, [0, 1], _greatest(op.operands[0]))
    return [Padded((rows.settled,))]


@in_template("top_k")
def _largest(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Mask with -inf. The first of equal elements is taken, which is never padding if there are enough
    true elements."""
    dims, k = w.dims(op.operands[0]), shape_of(op.results[0])[-1]
    if not dims[-1].prefix or dims[-1].total.range(w.shared.symbols)[0] < k:
        raise Refused(f"the {k} largest of {dims[-1]} elements, which may be fewer")
    w.mask_operand(op, 0, [len(dims) - 1], -inf)
    return [Padded((*dims[:-1], *static((k,)))) for _ in op.results]


@in_template("max_pool", "window_sum")
def _windowed(w: Walk, op: TemplateOp) -> Sequence[Padded] | None:
    """Mask with the value that leaves windows unchanged.

    Only the reach of the last window after the end may depend on the size. Indices in a plane are counted among its
    true elements.
    """
    planes, *spatial = w.dims(op.operands[0])
    contiguous(*spatial)
    out = w.result_dims(op)
    dims = (planes, *[Dim(dim.factors) for dim in out[1:]])
    w.mask_operand(op, 0, range(1, len(spatial) + 1), WINDOWED[op.template_name.data])
    if len(op.results) == 1 or not any(dim.padded for dim in spatial[1:]):
        return [Padded(dims) for _ in op.results]
    b = w.builder
    results = [(dtype_of(x), shape_of(x)) for x in op.results]
    values, places = b.template(op.template_name.data, list(op.operands), results, **op.arguments)
    places = w.renumbered(places, [dim.size for dim in spatial], [dim.total for dim in spatial])
    for old, new in zip(op.results, (values, places), strict=True):
        old.replace_all_uses_with(new)
        w.shared.values[new] = Padded(dims)
    op.detach()
    op.erase()
    return None


@in_template("convolution")
def _convolved(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Slide a window over zero padding. The window and the features must not be padded."""
    batch, features, *spatial = w.dims(op.operands[0])
    if features.padded or w.of(op.operands[1]).padded or any(not dim.prefix for dim in spatial):
        raise Refused("the window, the features or a merged dimension of a convolution are sized")
    w.mask_operand(op, 0, range(2, len(spatial) + 2), 0)
    out = w.result_dims(op)
    return [Padded((batch, *[dim.settled for dim in out[1:]]))]


@in_template("convolution_weight_gradient")
def _gradient_of_kernel(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Set padding to 0 on both sides, which sum products of inputs under a window and its gradient over all windows."""
    x, grad = (w.dims(v) for v in op.operands)
    if x[1].padded or grad[1].padded or any(dim.padded for dim in w.result_dims(op)):
        raise Refused("the features or the window of a convolution are sized")
    batch = merged_all([x[:1], grad[:1]])
    for index, (_, features, *spatial) in enumerate((x, grad)):
        contiguous(*spatial)
        w.mask_operand(op, index, (0, *range(2, len(x))), 0, (*batch, features, *spatial))
    return [Padded(static(shape_of(op.results[0])))]


@in_template("max_pool_backward")
def _back_through_windows(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Set the gradients of padding to 0. They are added to the first element of their plane, which they
    do not change."""
    grad, x, places = (w.dims(v) for v in op.operands)
    contiguous(*grad[1:], *x[1:])
    merged_all([grad, places])
    spatial = range(1, len(x))
    w.mask_operand(op, 0, spatial, 0)
    w.mask_operand(op, 1, spatial, -inf)
    w.mask_operand(op, 2, spatial, 0)
    if any(dim.padded for dim in x[2:]):
        op.operands[2] = w.renumbered(op.operands[2], [dim.total for dim in x[1:]], [dim.size for dim in x[1:]])
        w.shared.values[op.operands[2]] = Padded(places)
    return [Padded((merged_all([grad[:1], x[:1]])[0], *x[1:]))]


@in_template("grouped_rows")
def _rows_of_groups(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Multiply rows of padding with no matrix: no group has them."""
    x, weights = (w.dims(v) for v in op.operands[:2])
    contiguous(x[0])
    if x[1].padded or weights[0].padded or weights[1].padded:
        raise Refused("the number of groups, or what their products sum over, is sized")
    return [Padded((x[0], weights[2]))]


@in_template("grouped_sums")
def _sums_of_groups(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Sum no padding: no group has it."""
    x, y, ends = (w.dims(v) for v in op.operands)
    contiguous(merged_all([x[:1], y[:1]])[0])
    if ends[0].padded:
        raise Refused("the number of groups is sized")
    return [Padded((*static(shape_of(op.results[0])[:1]), x[1], y[1]))]
