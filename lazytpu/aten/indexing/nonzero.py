"""Indices whose number depends on values: of true elements, and of repeated elements. The number is a static argument:
the frontend has read it before, or the user gave it."""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from lazytpu.aten.registry import rule
from lazytpu.ir.builder import Builder
from lazytpu.ir.types import dtype_of, shape_of


@rule("aten.nonzero_static.default")
def nonzero_static(b: Builder, self: SSAValue, size: int, fill_value: int = -1) -> SSAValue:
    """Indices of the first `size` nonzero elements in row-major order, i64[size, dims]; `fill_value` past the last.

    The flat index of each true element is scattered to the slot that counts the true elements before it.
    """
    shape = shape_of(self)
    count = prod(shape)
    if not shape or not size or not count:
        return b.constant(fill_value, "i64", (size, len(shape)))
    flat = b.reshape(b.convert(self, "i1") if dtype_of(self) != "i1" else self, (count,))
    slot = b.sub(b.cumulative("add", b.convert(flat, "i64"), 0), b.constant(1, "i64", (count,)))
    slot = b.select(flat, slot, b.constant(size, "i64", (count,)))  # out of bounds: dropped
    positions = b.scatter(
        b.constant(-1, "i64", (size,)),
        b.reshape(slot, (count, 1)),
        b.iota("i64", (count,), 0),
        kind="set",
        update_window_dims=(),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
        index_vector_dim=1,
        unique_indices=False,
    )
    columns: list[SSAValue] = []
    remainders = positions
    for dim in range(len(shape)):
        step = b.constant(prod(shape[dim + 1 :]), "i64", (size,))
        columns.append(b.reshape(b.div(remainders, step), (size, 1)))
        remainders = b.binary("rem", remainders, step)
    indices = b.concatenate(columns, 1)
    missing = b.broadcast_in_dim(b.compare("LT", positions, b.constant(0, "i64", (size,))), (size, len(shape)), (0,))
    return b.select(missing, b.constant(fill_value, "i64", (size, len(shape))), indices)


@rule("lazytpu.nonzero.default")
def nonzero(b: Builder, self: SSAValue, count: int) -> SSAValue:
    """The indices of the `count` nonzero elements: i64[count, dims]."""
    return nonzero_static(b, self, count)


@rule("lazytpu.repeat_interleave.counted", "lazytpu.repeat_interleave.given")
def repeat_interleave(b: Builder, repeats: SSAValue, count: int) -> SSAValue:
    """Each index i repeated `repeats[i]` times; the total is `count`."""
    ends = b.cumulative("add", b.convert(repeats, "i64"), 0)
    size, dtype = shape_of(ends)[0], dtype_of(repeats)
    negative = b.compare("LT", repeats, b.constant(0, dtype, (size,)))
    b.check(b.not_(negative), "repeats can not be negative", error="RuntimeError")
    total = b.reshape(b.slice(ends, [size - 1], [size]), [])
    fits = b.compare("EQ", total, b.constant(count, "i64"))
    b.check(fits, "allocated size does not match required size", error="RuntimeError")
    if not count:
        return b.constant(0, dtype, (0,))
    positions = b.iota("i64", (count,), 0)
    indices = b.template("searchsorted", [ends, positions], [("i64", (count,))], side="right", wide=True)[0]
    return b.convert(indices, dtype)
