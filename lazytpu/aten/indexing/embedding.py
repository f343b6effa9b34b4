"""Embedding tables: one gather of rows forward, one scatter-add backward."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.dims import along
from lazytpu.aten.indexing.gather import in_range, take
from lazytpu.aten.indexing.scatter import put_slices
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.reductions.statistics import norm
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

OUT_OF_RANGE = "index out of range in self"


@rule("aten.embedding.default")
def embedding(
    b: Builder,
    weight: SSAValue,
    indices: SSAValue,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> SSAValue:
    """Rows of `weight` [rows, width] at `indices`: [*indices, width]."""
    return take(b, weight, in_range(b, indices, shape_of(weight)[0], OUT_OF_RANGE), 0)


def occurrences(b: Builder, index: SSAValue, rows: int) -> SSAValue:
    """How often each row occurs in the vector `index` (i32)."""
    return put_slices(b, "add", b.constant(0, "i32", [rows]), 0, index, b.constant(1, "i32", shape_of(index)))


def summed_rows(
    b: Builder, grad: SSAValue, index: SSAValue, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> SSAValue:
    """[rows, width]: the rows of `grad` [n, width] added up at `index` [n], except at row `padding_idx`.

    Padding goes to a row past the end, which scatter drops: that is cheaper than zeroing its gradients.
    """
    width = shape_of(grad)[1]
    if scale_grad_by_freq:
        counts = b.convert(take(b, occurrences(b, index, rows), index, 0), dtype_of(grad))
        grad = b.div(grad, along(b, counts, shape_of(grad), [1]))
    if padding_idx >= 0:
        index = b.select(b.compare("EQ", index, full(b, padding_idx, index)), full(b, rows, index), index)
    return put_slices(b, "add", b.constant(0, dtype_of(grad), [rows, width]), 0, index, grad)


@rule("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    b: Builder, grad_output: SSAValue, indices: SSAValue, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> SSAValue:
    """The gradient of the table: rows of `grad_output` added up at `indices`. With `scale_grad_by_freq`, each row is
    divided by the number of its uses."""
    n, width = prod(shape_of(indices)), shape_of(grad_output)[-1]
    grad = b.reshape(grad_output, [n, width])
    index = in_range(b, b.reshape(indices, [n]), num_weights, OUT_OF_RANGE)
    return summed_rows(b, grad, index, num_weights, padding_idx, scale_grad_by_freq)


@rule("aten.embedding_renorm.default")
def embedding_renorm(b: Builder, self: SSAValue, indices: SSAValue, max_norm: float, norm_type: float) -> SSAValue:
    """The table with the rows at `indices` scaled down to `max_norm` where their norm is larger.

    The 1e-7 in the divisor is torch's (aten/src/ATen/native/Embedding.cpp), which divides in float64 and rounds
    norms and factors to the table's dtype.
    """
    index = b.reshape(indices, [prod(shape_of(indices))])
    index = in_range(b, index, shape_of(self)[0], OUT_OF_RANGE)
    rows = take(b, self, index, 0)
    if prod(shape_of(rows)) == 0:
        return self
    computed = b.convert(rows, wide(dtype_of(rows)))
    size = b.convert(b.convert(norm(b, computed, norm_type, [1], True), dtype_of(self)), "f64")
    limit = full(b, max_norm, size)
    factor = b.div(limit, b.add(size, full(b, 1e-7, size)))
    factor = b.select(b.compare("GT", size, limit), factor, full(b, 1, size))
    factor = b.convert(b.convert(factor, dtype_of(self)), dtype_of(computed))
    scaled = b.convert(b.mul(computed, along(b, factor, shape_of(rows), [1])), dtype_of(self))
    return put_slices(b, "set", self, 0, index, scaled)
