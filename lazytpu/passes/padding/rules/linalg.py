"""Linear algebra templates on padded matrices: the padding becomes a block that changes no true element."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from lazytpu.ir.template import TemplateOp
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.passes.padding.dims import Dim, Refused, contiguous, merged, merged_all
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.rules.templates import in_template
from lazytpu.passes.padding.walk import Walk


def _square(w: Walk, op: TemplateOp, index: int) -> Dim:
    """Change a square matrix operand to [[a, 0], [0, 1]], which has the factors of a and full rank. Return its size."""
    x = op.operands[index]
    rows = _side(w, op, index)
    _beside(w, op, index, w.builder.constant(1, dtype_of(x), shape_of(x)))
    return rows


def _side(w: Walk, op: TemplateOp, index: int) -> Dim:
    """Return the size of a square matrix. Raise Refused if it is not square."""
    *_, rows, columns = w.dims(op.operands[index])
    if rows.factors != columns.factors or not rows.prefix:
        raise Refused(f"a matrix of {rows} x {columns} is factored, which is not square")
    return rows


def _zeroed(w: Walk, op: TemplateOp, index: int) -> tuple[Dim, ...]:
    """Set the padding of an operand to 0. Return its dimensions, the last two of which are not merged ones."""
    dims = w.dims(op.operands[index])
    contiguous(*dims[-2:])
    w.mask_operand(op, index, range(len(dims)), 0)
    return dims


def _beside(w: Walk, op: TemplateOp, index: int, diagonal: SSAValue) -> None:
    """Change a matrix operand to [[a, 0], [0, d]], where d has the elements of `diagonal` on its diagonal."""
    b, x = w.builder, op.operands[index]
    dims, shape = w.dims(x), shape_of(x)
    mask = w.mask(dims, range(len(dims)))
    if mask is None:
        return
    on = b.compare("EQ", b.iota("i32", shape, len(shape) - 2), b.iota("i32", shape, len(shape) - 1))
    block = b.select(on, diagonal, b.constant(0, dtype_of(x), shape))
    op.operands[index] = w.selected(mask, x, block, Padded(dims))


@in_template("cholesky", "lu")
def _factored(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Factor a square matrix beside an identity block, whose factors are identities."""
    rows = _square(w, op, 0)
    batch = w.dims(op.operands[0])[:-2]
    return [Padded((*batch, *([rows] * (len(shape_of(x)) - len(batch))))) for x in op.results]


@in_template("matrix_exp")
def _exponential(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Mask with zeros, which change neither the norm of a matrix nor its powers."""
    _side(w, op, 0)
    return [Padded(_zeroed(w, op, 0))]


@in_template("pivots_to_permutation")
def _permuted(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Keep rows of padding in place."""
    b, pivots, dims = w.builder, op.operands[0], w.dims(op.operands[0])
    contiguous(dims[-1])
    mask = w.mask(dims, range(len(dims)))
    row_indices = b.iota(dtype_of(pivots), shape_of(pivots), len(dims) - 1)
    op.operands[0] = w.selected(mask, pivots, row_indices, Padded(dims))
    rows = w.result_dims(op)[-1]
    (size,) = w.forms(op, "size", [rows.size])
    if size != rows.total:
        raise Refused(f"a permutation of {size} rows has {rows.total} elements")
    return [Padded((*dims[:-1], rows))]


@in_template("triangular_solve")
def _solved(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Solve a x = b, or x a = b, with zeros in the padding of b."""
    rows = _square(w, op, 0)
    *batch, _, _ = w.dims(op.operands[0])
    dims = list(w.dims(op.operands[1]))
    from_left = op.arguments.get("left", True)
    side = len(dims) - (2 if from_left else 1)
    dims = [*merged_all([batch, dims[:-2]]), *dims[-2:]]
    dims[side] = merged(dims[side], rows)
    w.mask_operand(op, 1, range(len(dims)), 0, dims)
    return [Padded(tuple(dims))]


@in_template("eigh")
def _eigen(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Put a block with larger eigenvalues beside the matrix, so that the matrix's own eigenvalues come first.

    No eigenvalue exceeds the greatest sum of absolute values in a row. The eigenvectors of the block are 0 in the rows
    of the matrix.
    """
    rows, x = _side(w, op, 0), op.operands[0]
    b, shape, last = w.builder, shape_of(x), len(shape_of(x)) - 1
    mask = w.mask(w.dims(x), range(last + 1))
    if mask is not None:
        row, column = b.iota("i32", shape, last - 1), b.iota("i32", shape, last)
        upper = op.arguments.get("upper", False)
        read = b.and_(mask, b.compare("LE" if upper else "GE", row, column))
        size = b.abs(x)
        size = b.select(read, size, b.constant(0, dtype_of(size), shape))
        bounds = [b.reduce("max", b.reduce("add", size, (dim,)), (last - 1,)) for dim in (last - 1, last)]
        bound = b.add(b.add(*bounds), b.constant(1, dtype_of(size), shape[:-2]))
        _beside(w, op, 0, b.convert(b.broadcast_in_dim(bound, shape, range(last - 1)), dtype_of(x)))
    batch = w.dims(x)[:-2]
    return [Padded((*batch, *([rows] * (len(shape_of(result)) - len(batch))))) for result in op.results]


def _least(w: Walk, rows: Dim, columns: Dim) -> Dim:
    """Return the dimension that is the smaller one at all sizes and in memory. Raise Refused if it is unknown."""
    if rows.factors == columns.factors:
        return rows
    spans = [(*dim.total.range(w.shared.symbols), dim.size) for dim in (rows, columns)]
    for dim, (_, most, size), (least, _, other_size) in ((rows, *spans), (columns, *spans[::-1])):
        if most <= least and size <= other_size:
            return dim
    raise Refused(f"either of {rows} and {columns} may be the smaller one")


@in_template("geqrf", "qr")
def _orthogonal(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Mask with zeros: reflectors of columns that end in zeros end in zeros, and zero columns give
    trivial reflections."""
    *batch, rows, columns = dims = _zeroed(w, op, 0)
    least = _least(w, rows, columns)
    if op.template_name.data == "geqrf":
        return [Padded(dims), Padded((*batch, least))]
    full = op.arguments.get("full", False)
    inner = rows if full else least
    return [Padded((*batch, rows, inner)), Padded((*batch, inner, columns))]


@in_template("householder_product")
def _reflected(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Mask reflectors and factors with zeros, which give trivial reflections."""
    reflectors, _ = (_zeroed(w, op, index) for index in range(len(op.operands)))
    return [Padded(reflectors)]


@in_template("svdvals")
def _singular_values(w: Walk, op: TemplateOp) -> Sequence[Padded]:
    """Mask with zeros, whose singular values are zeros and come last."""
    *batch, rows, columns = _zeroed(w, op, 0)
    return [Padded((*batch, _least(w, rows, columns)))]
