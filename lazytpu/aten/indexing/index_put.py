"""self[indices] = values, with integer indices or masks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.dims import without
from lazytpu.aten.indexing.gather import MASKS, indexed, take
from lazytpu.aten.indexing.scatter import put_slices
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.registry import rule
from lazytpu.aten.shape.masks import ranks
from lazytpu.ir.symbolic import spelled
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


@rule("aten.index_put.default", "aten._index_put_impl.default")
def index_put(
    b: Builder,
    self: SSAValue,
    indices: Sequence[SSAValue | None],
    values: SSAValue,
    accumulate: bool = False,
    unsafe: bool = False,
) -> SSAValue:
    """`self` with `values`, broadcast to the shape that `indices` select, set or added at `indices`."""
    return _index_put(b, self, indices, values, accumulate, check=not unsafe)


@rule("aten._unsafe_index_put.default")
def unsafe_index_put(
    b: Builder, self: SSAValue, indices: Sequence[SSAValue | None], values: SSAValue, accumulate: bool = False
) -> SSAValue:
    """`index_put` at indices known to be in range."""
    return _index_put(b, self, indices, values, accumulate, check=False)


def _index_put(
    b: Builder,
    x: SSAValue,
    indices: Sequence[SSAValue | None],
    values: SSAValue,
    accumulate: bool,
    *,
    check: bool,
) -> SSAValue:
    used = [i for i in indices if i is not None]
    shape, values = shape_of(x), b.convert(values, dtype_of(x))
    if not used:
        values = b.broadcast_to(values, shape)
        return b.add(x, values) if accumulate else values
    if any(dtype_of(i) in MASKS for i in used):
        if len(used) > 1:
            raise NotImplementedError(
                "assignment at a mask combined with other indices; expected the mask alone: "
                "index with mask.nonzero(as_tuple=True), or assign with torch.where"
            )
        mask = used[0] if dtype_of(used[0]) == "i1" else b.compare("NE", used[0], full(b, 0, used[0]))
        return _put_at_mask(b, x, mask, list(indices).index(used[0]), values, accumulate)
    where = indexed(b, shape, indices, check=check)
    if prod(where.result) == 0 or prod(shape) == 0:
        return x
    return b.scatter(
        x,
        where.vectors,
        b.broadcast_to(values, where.result),
        kind="max" if accumulate and dtype_of(x) == "i1" else "add" if accumulate else "set",
        update_window_dims=where.windows,
        inserted_window_dims=where.dims,
        scatter_dims_to_operand_dims=where.dims,
        index_vector_dim=len(where.batch),
    )


def _put_at_mask(b: Builder, x: SSAValue, mask: SSAValue, dim: int, values: SSAValue, accumulate: bool) -> SSAValue:
    """`x` with `values` where `mask`, which covers the dims of `x` from `dim` on, is true.

    `values` broadcasts to [*before, n, *after], where n is the number of true elements: one value (or slice) for all,
    or n of them in row-major order. No element's position depends on n, so n need not be known.
    """
    shape, covered = shape_of(x), shape_of(mask)
    dims = list(range(dim, dim + len(covered)))
    kept = without(shape, dims)
    rank = len(kept) + 1
    value_shape = shape_of(values)
    values = b.reshape(values, [*[1] * (rank - len(value_shape)), *value_shape])
    supplied = shape_of(values)[dim]
    values = b.broadcast_to(values, [*kept[:dim], supplied, *kept[dim:]])
    if supplied == 0:
        b.check(b.not_(mask), "shape mismatch: no values for the elements the mask selects", error="RuntimeError")
    if supplied == 0 or prod(shape) == 0:
        return x
    if supplied == 1:
        spread = b.broadcast_to(values, [*kept[:dim], prod(covered), *kept[dim:]])
    else:
        running = ranks(b, b.reshape(mask, [prod(covered)]))
        _check_count(b, running, supplied)
        slot = b.sub(b.max(running, full(b, 1, running)), full(b, 1, running))
        spread = take(b, values, slot, dim)
    spread = b.reshape(spread, shape)
    true = b.broadcast_in_dim(mask, shape, dims)
    if accumulate:
        spread = b.or_(x, spread) if dtype_of(x) == "i1" else b.add(x, spread)
    return b.select(true, spread, x)


def _check_count(b: Builder, running: SSAValue, supplied: int) -> None:
    """Register the check that the mask has as many true elements as there are values."""
    size = shape_of(running)[0]
    selected = b.reshape(b.slice(running, [size - 1], [size]), [])
    message = (
        f"shape mismatch: value tensor of {spelled(supplied)} elements cannot be broadcast to the elements the mask "
        "selects"
    )
    b.check(b.compare("EQ", selected, b.constant(supplied, "i32")), message, error="RuntimeError")


@rule("aten.masked_scatter.default")
def masked_scatter(b: Builder, self: SSAValue, mask: SSAValue, source: SSAValue) -> SSAValue:
    """`self` with its elements where `mask` is true replaced by the elements of `source`, in order."""
    shape = b.out[0][1]
    x, true = b.broadcast_to(self, shape), b.broadcast_to(mask, shape)
    size, supplied = prod(shape), prod(shape_of(source))
    if size == 0:
        return x
    running = ranks(b, b.reshape(true, [size]))
    selected = b.reshape(b.slice(running, [size - 1], [size]), [])
    enough = b.compare("LE", selected, b.constant(supplied, "i32"))
    b.check(enough, "Number of elements of source < number of ones in mask", error="RuntimeError")
    if supplied == 0:
        return x
    slot = b.sub(b.max(running, full(b, 1, running)), full(b, 1, running))
    spread = take(b, b.reshape(source, [supplied]), slot, 0)
    return b.select(true, b.reshape(spread, shape), x)


@rule("aten.masked_scatter_backward.default")
def masked_scatter_backward(b: Builder, grad_output: SSAValue, mask: SSAValue, sizes: Sequence[int]) -> SSAValue:
    """The gradient of `source`, of shape `sizes`: the elements of `grad_output` where `mask` is true, then zeros."""
    size, count = prod(shape_of(grad_output)), prod(sizes)
    true = b.reshape(b.broadcast_to(mask, shape_of(grad_output)), [size])
    running = ranks(b, true)
    slot = b.select(true, b.sub(running, full(b, 1, running)), full(b, count, running))
    zeros = b.constant(0, dtype_of(grad_output), [count])
    return b.reshape(put_slices(b, "set", zeros, 0, slot, b.reshape(grad_output, [size])), sizes)
