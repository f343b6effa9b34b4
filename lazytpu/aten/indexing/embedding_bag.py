"""Embedding bags: the sum, mean or maximum of groups of rows of a table.

`offsets` [bags] holds the start of each bag in `indices` [n]; with `include_last_offset` it has one more entry, the end
of the last bag. Rows at `padding_idx` are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from lazytpu.aten.dims import along
from lazytpu.aten.indexing.embedding import OUT_OF_RANGE, summed_rows
from lazytpu.aten.indexing.gather import in_range, take, take_along
from lazytpu.aten.indexing.scatter import put_along, put_slices
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.registry import rule
from lazytpu.ir.symbolic import spelled
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

SUM, MEAN, MAX = 0, 1, 2


@dataclass
class Bags:
    """The bag of each index (i32 [n]; `count` or more if it is ignored) and the number of indices per bag (i32)."""

    member: SSAValue
    sizes: SSAValue
    count: int


def _members(b: Builder, offsets: SSAValue, n: int) -> SSAValue:
    """The bag of each of n indices: the number of offsets at or before it, minus one."""
    starts = put_slices(
        b, "add", b.constant(0, "i32", [n]), 0, b.convert(offsets, "i32"), b.constant(1, "i32", shape_of(offsets))
    )
    return b.sub(b.cumulative("add", starts, 0), b.constant(1, "i32", [n])) if n else starts


def _bags(b: Builder, member: SSAValue, index: SSAValue, count: int, padding_idx: int) -> Bags:
    if padding_idx >= 0:
        padding = b.compare("EQ", index, full(b, padding_idx, index))
        member = b.select(padding, full(b, count, member), member)
    ones = b.constant(1, "i32", shape_of(member))
    return Bags(member, put_slices(b, "add", b.constant(0, "i32", [count]), 0, member, ones), count)


def _largest(b: Builder, rows: SSAValue, index: SSAValue, bags: Bags) -> tuple[SSAValue, SSAValue]:
    """(the largest of each column in a bag, the index of the first row that has it), both [bags, width]; 0 for an
    empty bag.

    As in torch's loop, later rows replace the first one where they are greater: a NaN counts in the first row alone.
    """
    n, width = shape_of(rows)
    if n == 0:
        return b.constant(0, dtype_of(rows), [bags.count, width]), b.constant(0, dtype_of(index), [bags.count, width])
    numbers = b.compare("EQ", rows, rows)
    least = b.constant(-inf, dtype_of(rows), [bags.count, width])
    best = put_slices(b, "max", least, 0, bags.member, b.select(numbers, rows, full(b, -inf, rows)))
    hit = b.compare("EQ", rows, take(b, best, b.min(bags.member, full(b, max(bags.count - 1, 0), bags.member)), 0))
    position = b.select(hit, b.iota("i32", [n, width], 0), b.constant(n, "i32", [n, width]))
    first = put_slices(b, "min", b.constant(n, "i32", [bags.count, width]), 0, bags.member, position)
    start = put_slices(b, "min", b.constant(n - 1, "i32", [bags.count]), 0, bags.member, b.iota("i32", [n], 0))
    stays = b.compare("NE", leading := take(b, rows, start, 0), leading)
    first = b.select(stays, along(b, start, [bags.count, width], [1]), b.min(first, full(b, n - 1, first)))
    empty = along(b, b.compare("EQ", bags.sizes, full(b, 0, bags.sizes)), [bags.count, width], [1])
    largest, chosen = take_along(b, rows, 0, first), take(b, index, first, 0)
    return b.select(empty, full(b, 0, largest), largest), b.select(empty, full(b, 0, chosen), chosen)


def _check_offsets(b: Builder, offsets: SSAValue, n: int) -> None:
    """Register the checks that the first bag starts at 0 and the last one within the indices."""
    (size,) = shape_of(offsets)
    if size:
        first, last = b.slice(offsets, [0], [1]), b.slice(offsets, [size - 1], [size])
        start = "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0."
        b.check(b.compare("EQ", first, full(b, 0, first)), start, error="RuntimeError")
        end = f"offsets[-1] can not be greater than input's length {spelled(n)}"
        b.check(b.compare("LE", last, full(b, n, last)), end, error="RuntimeError")


@rule("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    b: Builder,
    weight: SSAValue,
    indices: SSAValue,
    offsets: SSAValue,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: SSAValue | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[SSAValue, ...]:
    """(output [bags, width], bag of each index, size of each bag, indices of the maxima). As on the CPU, the sizes of
    sums are 0, and the last result is the sizes where there are no maxima."""
    count, n = shape_of(offsets)[0] - include_last_offset, shape_of(indices)[0]
    _check_offsets(b, offsets, n)
    offsets = b.slice(offsets, [0], [count])
    message = "embedding_bag: Expected idx >= 0 && idx < num_embeddings"
    index = in_range(b, b.reshape(indices, [n]), shape_of(weight)[0], message, error="RuntimeError")
    member = _members(b, offsets, n)
    bags = _bags(b, member, index, count, padding_idx)
    rows = b.convert(take(b, weight, index, 0), wide(dtype_of(weight)))
    if per_sample_weights is not None:
        rows = b.mul(rows, along(b, b.convert(per_sample_weights, dtype_of(rows)), shape_of(rows), [1]))
    sizes = b.constant(0, "i32", [count]) if mode == SUM else bags.sizes
    sizes = maxima = b.pad(sizes, b.constant(0, "i32"), [0], [b.out[2][1][0] - count])
    if mode == MAX:
        output, maxima = _largest(b, rows, index, bags)
    else:
        zeros = b.constant(0, dtype_of(rows), [count, shape_of(weight)[1]])
        output = put_slices(b, "add", zeros, 0, bags.member, rows)
        if mode == MEAN:
            output = b.div(output, _divisors(b, bags.sizes, output))
    member = b.slice(member, [0], [b.out[1][1][0]])
    saved = [b.convert(x, kind) for x, (kind, _) in zip((member, sizes, maxima), b.out[1:], strict=True)]
    return b.convert(output, dtype_of(weight)), saved[0], saved[1], saved[2]


def _divisors(b: Builder, sizes: SSAValue, like: SSAValue) -> SSAValue:
    """Sizes of bags, 1 for empty ones, in the shape and dtype of `like` [bags, width]."""
    sizes = b.max(sizes, full(b, 1, sizes))
    return along(b, b.convert(sizes, dtype_of(like)), shape_of(like), [1])


@rule("aten._embedding_bag_dense_backward.default")
def embedding_bag_dense_backward(
    b: Builder,
    grad: SSAValue,
    indices: SSAValue,
    offset2bag: SSAValue,
    bag_size: SSAValue,
    maximum_indices: SSAValue,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: SSAValue | None,
    padding_idx: int = -1,
) -> SSAValue:
    """The gradient of the table [num_weights, width]; of f16 and bf16 it is summed in f32 and rounded once."""
    (count, width), dtype = shape_of(grad), dtype_of(grad)
    grad = b.convert(grad, wide(dtype))
    sizes = b.slice(b.convert(bag_size, "i32"), [0], [count]) if mode != SUM else None
    if mode == MAX and sizes is not None:
        empty = along(b, b.compare("EQ", sizes, full(b, 0, sizes)), [count, width], [1])
        where = b.convert(maximum_indices, "i32")
        where = b.select(empty, full(b, num_weights, where), where)
        start = b.constant(0, dtype_of(grad), [num_weights, width])
        return b.convert(put_along(b, "add", start, 0, where, grad), dtype)
    if sizes is not None:
        grad = b.div(grad, _divisors(b, sizes, grad))
    rows = take(b, grad, b.convert(offset2bag, "i32"), 0)
    if per_sample_weights is not None:
        rows = b.mul(rows, along(b, b.convert(per_sample_weights, dtype_of(rows)), shape_of(rows), [1]))
    index = in_range(b, indices, num_weights, OUT_OF_RANGE)
    return b.convert(summed_rows(b, rows, index, num_weights, padding_idx, scale_grad_by_freq), dtype)


@rule("aten._embedding_bag_per_sample_weights_backward.default")
def embedding_bag_per_sample_weights_backward(
    b: Builder,
    grad: SSAValue,
    weight: SSAValue,
    indices: SSAValue,
    offsets: SSAValue,
    offset2bag: SSAValue,
    mode: int,
    padding_idx: int = -1,
) -> SSAValue:
    """For each index, the dot product of its bag's gradient and its row of the table; 0 for padding."""
    n = shape_of(indices)[0]
    index = in_range(b, indices, shape_of(weight)[0], OUT_OF_RANGE)
    member = b.convert(offset2bag, "i32") if shape_of(offset2bag) == (n,) else _members(b, offsets, n)
    computed = wide(dtype_of(weight))
    rows = b.convert(take(b, weight, index, 0), computed)
    products = b.reduce("add", b.mul(b.convert(take(b, grad, member, 0), computed), rows), [1])
    if padding_idx >= 0:
        products = b.select(b.compare("EQ", index, full(b, padding_idx, index)), full(b, 0, products), products)
    return b.convert(products, dtype_of(grad))


@rule("aten._embedding_bag_backward.default")
def embedding_bag_backward(
    b: Builder,
    grad: SSAValue,
    indices: SSAValue,
    offsets: SSAValue,
    offset2bag: SSAValue,
    bag_size: SSAValue,
    maximum_indices: SSAValue,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: SSAValue | None,
    padding_idx: int = -1,
) -> SSAValue:
    """The gradient of the table, dense even if `sparse`. If the bags of the indices were not saved, they are computed
    again."""
    n = shape_of(indices)[0]
    if shape_of(offset2bag) != (n,):
        offset2bag = _members(b, b.slice(offsets, [0], [shape_of(grad)[0]]), n)
    saved = (offset2bag, bag_size, maximum_indices)
    options = (num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx)
    return embedding_bag_dense_backward(b, grad, indices, *saved, *options)
