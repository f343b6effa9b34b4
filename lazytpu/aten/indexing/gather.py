"""Reading at computed indices.

XLA clamps an index that is out of range, so every op here registers a check with torch's message (R9). Indices are
i32 for dimensions below 2³¹, since a TPU has no 64-bit registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.dims import front, without
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.promotion import broadcast_shape
from lazytpu.aten.registry import rule
from lazytpu.ir.symbolic import spelled
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

MASKS = ("i1", "ui8")  # uint8 indices are masks too, by torch's older convention


def in_range(
    b: Builder, index: SSAValue, size: int, message: str, *, wrap: bool = False, error: str = "IndexError"
) -> SSAValue:
    """`index` as i32 (i64 for 2³¹ elements and more). Registers a check that 0 <= index < size, which raises `error`.

    With `wrap`, -size <= index < 0 counts from the end.
    """
    index = b.convert(index, "i64") if dtype_of(index) == "ui8" else index
    above = b.compare("GE", index, full(b, -size if wrap else 0, index))
    b.check(b.and_(above, b.compare("LT", index, full(b, size, index))), message, error)
    index = b.convert(index, "i32" if size < 1 << 31 else "i64")
    if wrap:
        index = b.select(b.compare("LT", index, full(b, 0, index)), b.add(index, full(b, size, index)), index)
    return index


def bounds(dim: int, size: int) -> str:
    """torch's message for an index outside a dimension."""
    return f"index is out of bounds for dimension {dim} with size {spelled(size)}"


def take(b: Builder, x: SSAValue, index: SSAValue, dim: int) -> SSAValue:
    """Slices of `x` at `index` along `dim`, in one gather; the dims of `index` replace `dim`."""
    shape, batch = shape_of(x), shape_of(index)
    result = (*shape[:dim], *batch, *shape[dim + 1 :])
    if prod(result) == 0 or shape[dim] == 0:
        return b.constant(0, dtype_of(x), result)
    return b.gather(
        x,
        index,
        offset_dims=[*range(dim), *range(dim + len(batch), len(result))],
        collapsed_slice_dims=[dim],
        start_index_map=[dim],
        index_vector_dim=len(batch),
        slice_sizes=[1 if d == dim else n for d, n in enumerate(shape)],
    )


def pick(b: Builder, x: SSAValue, index: SSAValue, dim: int) -> SSAValue:
    """One element of `x` along `dim` for each position in the other dims; `index` has the shape of `x` without `dim`.

    With log_softmax before it, the loss of 512 rows of 8192 classes takes XLA:CPU 2.5 ms; with a one-hot sum, 4.1 ms.
    """
    batch_dims = [d for d in range(len(shape_of(x))) if d != dim]
    if prod(shape_of(x)) == 0:
        return b.constant(0, dtype_of(x), shape_of(index))
    return b.gather(
        x,
        index,
        offset_dims=[],
        collapsed_slice_dims=[dim],
        operand_batching_dims=batch_dims,
        start_indices_batching_dims=range(len(batch_dims)),
        start_index_map=[dim],
        index_vector_dim=len(batch_dims),
        slice_sizes=[1] * len(shape_of(x)),
    )


@rule("aten.index_select.default")
def index_select(b: Builder, self: SSAValue, dim: int, index: SSAValue) -> SSAValue:
    """Slices of `self` along `dim`; negative indices are out of range."""
    shape = shape_of(self)
    x, dim = (self, front(dim, len(shape))) if shape else (b.reshape(self, [1]), 0)
    error = "RuntimeError" if dim == 1 else "IndexError"  # the CPU has a separate kernel for dim 1
    taken = take(b, x, in_range(b, index, shape_of(x)[dim], "index out of range in self", error=error), dim)
    return b.reshape(taken, b.out[0][1])


@rule("aten.gather.default")
def gather(b: Builder, self: SSAValue, dim: int, index: SSAValue, sparse_grad: bool = False) -> SSAValue:
    """self[i₀, …, index[i₀, …, iₙ], …, iₙ]; `index` may be smaller than `self` in the other dims."""
    x, index, dim = at_least_1d(b, self, index, dim)
    shape, extent = shape_of(x), shape_of(index)
    index = in_range(b, index, shape[dim], bounds(dim, shape[dim]), error="RuntimeError")
    if prod(extent) == 0 or shape[dim] == 0:
        return b.constant(0, dtype_of(x), b.out[0][1])
    x = b.slice(x, [0] * len(shape), [n if d == dim else extent[d] for d, n in enumerate(shape)])
    return b.reshape(take_along(b, x, dim, index), b.out[0][1])


def take_along(b: Builder, x: SSAValue, dim: int, index: SSAValue) -> SSAValue:
    """x[i₀, …, index[i₀, …, iₙ], …, iₙ]; `index` has the shape of `x` except at `dim`."""
    batch_dims = [d for d in range(len(shape_of(x))) if d != dim]
    if prod(shape_of(index)) == 0:
        return b.constant(0, dtype_of(x), shape_of(index))
    return b.gather(
        x,
        index,
        offset_dims=[],
        collapsed_slice_dims=[dim],
        operand_batching_dims=batch_dims,
        start_indices_batching_dims=batch_dims,
        start_index_map=[dim],
        index_vector_dim=len(batch_dims) + 1,
        slice_sizes=[1] * len(shape_of(x)),
    )


def at_least_1d(b: Builder, x: SSAValue, index: SSAValue, dim: int) -> tuple[SSAValue, SSAValue, int]:
    """`x` and `index`, 1-d if they were 0-d, and a non-negative `dim`."""
    shape, extent = shape_of(x) or (1,), shape_of(index) or (1,)
    return b.reshape(x, shape), b.reshape(index, extent), front(dim, len(shape))


@rule("aten.take.default")
def take_flat(b: Builder, self: SSAValue, index: SSAValue) -> SSAValue:
    """Elements of the flattened `self`; negative indices count from the end."""
    size = prod(shape_of(self))
    message = f"out of range: tried to access an index outside a tensor of {spelled(size)} elements."
    return take(b, b.reshape(self, [size]), in_range(b, index, size, message, wrap=True), 0)


@dataclass
class Indexed:
    """An index expression of Nones and integer tensors, in the form that one gather or scatter takes.

    `dims` of the tensor are indexed together. `vectors` [*batch, len(dims)] hold the coordinates. The batch dims start
    at dimension `at` of the result, whose shape is `result`.
    """

    dims: list[int]
    vectors: SSAValue
    batch: tuple[int, ...]
    at: int
    result: list[int]

    @property
    def windows(self) -> list[int]:
        """The dims of the result that are whole dims of the tensor."""
        rank = len(self.result)
        return [*range(self.at), *range(self.at + len(self.batch), rank)]


def indexed(b: Builder, shape: Sequence[int], indices: Sequence[SSAValue | None], *, check: bool = True) -> Indexed:
    """Return the elements that `indices` select from a tensor of `shape`. If there are none since another dimension is
    empty, the CPU checks only the indices of empty dimensions."""
    coordinates: list[tuple[int, SSAValue]] = []
    nothing = 0 in [n for dim, n in enumerate(shape) if dim >= len(indices) or indices[dim] is None]
    for dim, index in enumerate(indices):
        if index is None:
            continue
        if dtype_of(index) in MASKS:
            raise NotImplementedError(
                "indexing by a mask gives a result whose size depends on the mask's values; expected integer indices: "
                "index with mask.nonzero(as_tuple=True), or use torch.where or masked_fill, which need no size"
            )
        checked, message = check and not (nothing and shape[dim]), bounds(dim, shape[dim])
        coordinate = in_range(b, index, shape[dim], message, wrap=True) if checked else wrapped(b, index, shape[dim])
        coordinates.append((dim, coordinate))
    dims = [d for d, _ in coordinates]
    batch = broadcast_shape(*(shape_of(i) for _, i in coordinates))
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    at = dims[0] if adjacent else 0
    kept = without(shape, dims)
    wide = "i64" if any(dtype_of(i) == "i64" for _, i in coordinates) else "i32"
    columns = [b.reshape(b.broadcast_to(b.convert(i, wide), batch), [*batch, 1]) for _, i in coordinates]
    return Indexed(dims, b.concatenate(columns, len(batch)), batch, at, [*kept[:at], *batch, *kept[at:]])


def wrapped(b: Builder, index: SSAValue, size: int) -> SSAValue:
    """`index`, known to be in range, with negative entries counted from the end."""
    index = b.convert(index, "i32" if size < 1 << 31 else "i64")
    return b.select(b.compare("LT", index, full(b, 0, index)), b.add(index, full(b, size, index)), index)


@rule("aten.index.Tensor")
def index_tensor(b: Builder, self: SSAValue, indices: Sequence[SSAValue | None]) -> SSAValue:
    """self[indices]. Integer tensors are broadcast together; their dims stay in place if they are adjacent, else come
    first."""
    return _index(b, self, indices, check=True)


@rule("aten._unsafe_index.Tensor")
def unsafe_index(b: Builder, self: SSAValue, indices: Sequence[SSAValue | None]) -> SSAValue:
    """`index.Tensor` at indices known to be in range."""
    return _index(b, self, indices, check=False)


def _index(b: Builder, x: SSAValue, indices: Sequence[SSAValue | None], *, check: bool) -> SSAValue:
    if all(i is None for i in indices):
        return x
    shape = shape_of(x)
    where = indexed(b, shape, indices, check=check)
    if prod(where.result) == 0 or prod(shape) == 0:
        return b.constant(0, dtype_of(x), where.result)
    return b.gather(
        x,
        where.vectors,
        offset_dims=where.windows,
        collapsed_slice_dims=where.dims,
        start_index_map=where.dims,
        index_vector_dim=len(where.batch),
        slice_sizes=[1 if d in where.dims else n for d, n in enumerate(shape)],
    )
