"""Ops that read and write at run-time indices, with the dimension numbers of StableHLO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import AnyTensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def

from lazytpu.ir.base import (
    FALSE,
    FLAG,
    INT,
    INTS,
    NONE,
    SIZE_LIST,
    TENSOR,
    WORD,
    TensorOp,
    check_dims,
    check_dtype,
    check_length,
    check_sorted,
    integer,
)
from lazytpu.ir.types import DTYPES, FLOATS8, INTEGERS, Shape, dtype_of, ints, shape_of, tensor_type

SCATTER_KINDS = ("set", "add", "mul", "max", "min")


@irdl_op_definition
class GatherOp(TensorOp):
    """Slices of the operand at start indices, which are clamped so that slices lie in bounds."""

    name = "lazytpu.gather"
    operand = operand_def(TENSOR)
    start_indices = operand_def(TENSOR)
    offset_dims = prop_def(INTS, NONE)
    collapsed_slice_dims = prop_def(INTS, NONE)
    operand_batching_dims = prop_def(INTS, NONE)
    start_indices_batching_dims = prop_def(INTS, NONE)
    start_index_map = prop_def(INTS)
    index_vector_dim = prop_def(INT)
    slice_sizes = prop_def(SIZE_LIST)
    indices_are_sorted = prop_def(FLAG, FALSE)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (
            gather_type(
                self.operand_type(0),
                self.operand_type(1),
                offset_dims=ints(self.offset_dims),
                collapsed_slice_dims=ints(self.collapsed_slice_dims),
                operand_batching_dims=ints(self.operand_batching_dims),
                start_indices_batching_dims=ints(self.start_indices_batching_dims),
                start_index_map=ints(self.start_index_map),
                index_vector_dim=integer(self.index_vector_dim),
                slice_sizes=ints(self.slice_sizes),
            ),
        )


@irdl_op_definition
class ScatterOp(TensorOp):
    """The input with slices of `updates` written, added, ... at indices. Slices that are out of bounds are skipped. For
    `set`, the order of several updates of one element is unspecified. In half precision, updates are combined in
    float32, unless `rounded` asks for the dtype itself."""

    name = "lazytpu.scatter"
    HEAD: ClassVar = "kind"
    input = operand_def(TENSOR)
    indices = operand_def(TENSOR)
    updates = operand_def(TENSOR)
    kind = prop_def(WORD)
    update_window_dims = prop_def(INTS, NONE)
    inserted_window_dims = prop_def(INTS, NONE)
    input_batching_dims = prop_def(INTS, NONE)
    scatter_indices_batching_dims = prop_def(INTS, NONE)
    scatter_dims_to_operand_dims = prop_def(INTS)
    index_vector_dim = prop_def(INT)
    unique_indices = prop_def(FLAG, FALSE)
    indices_are_sorted = prop_def(FLAG, FALSE)
    rounded = prop_def(FLAG, FALSE)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (
            scatter_type(
                self.operand_type(0),
                self.operand_type(1),
                self.operand_type(2),
                kind=self.kind.data,
                update_window_dims=ints(self.update_window_dims),
                inserted_window_dims=ints(self.inserted_window_dims),
                input_batching_dims=ints(self.input_batching_dims),
                scatter_indices_batching_dims=ints(self.scatter_indices_batching_dims),
                scatter_dims_to_operand_dims=ints(self.scatter_dims_to_operand_dims),
                index_vector_dim=integer(self.index_vector_dim),
            ),
        )


@irdl_op_definition
class DynamicSliceOp(TensorOp):
    """The slice of `sizes` at run-time `starts` (0-d integers of one dtype), clamped so that it lies in bounds."""

    name = "lazytpu.dynamic_slice"
    operand = operand_def(TENSOR)
    starts = var_operand_def(TENSOR)
    sizes = prop_def(SIZE_LIST)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        starts = [self.operand_type(i) for i in range(1, len(self.operands))]
        return (dynamic_slice_type(self.operand_type(0), starts, ints(self.sizes)),)


@irdl_op_definition
class DynamicUpdateSliceOp(TensorOp):
    """The operand with `update` written at run-time `starts` (0-d integers), clamped so that it lies in bounds."""

    name = "lazytpu.dynamic_update_slice"
    operand = operand_def(TENSOR)
    update = operand_def(TENSOR)
    starts = var_operand_def(TENSOR)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        starts = [self.operand_type(i) for i in range(2, len(self.operands))]
        return (dynamic_update_slice_type(self.operand_type(0), self.operand_type(1), starts),)


def _batch_shape(indices: AnyTensorType, index_vector_dim: int, components: Sequence[int], what: str) -> Shape:
    """The shape of `indices` without the dimension of index vectors. Raises ValueError when that has the wrong
    length."""
    check_dtype(dtype_of(indices), INTEGERS, "indices")
    shape = shape_of(indices)
    if not 0 <= index_vector_dim <= len(shape):
        raise ValueError(f"index_vector_dim is {index_vector_dim}; expected 0 to {len(shape)} for {indices}")
    length = shape[index_vector_dim] if index_vector_dim < len(shape) else 1
    if length != len(components):
        raise ValueError(f"index vectors of {indices} have {length} components; {what} has {len(components)}")
    return shape[:index_vector_dim] + shape[index_vector_dim + 1 :]


def _check_batching(
    operand: Shape, indices: Shape, of_operand: Sequence[int], of_indices: Sequence[int], index_vector_dim: int
) -> None:
    check_dims(of_indices, len(indices), "batching dims of the indices")
    check_length(of_indices, len(of_operand), "batching dims of the indices")
    if index_vector_dim in of_indices:
        raise ValueError(f"batching dims of the indices are {list(of_indices)}; {index_vector_dim} holds index vectors")
    sizes = [operand[d] for d in of_operand], [indices[d] for d in of_indices]
    if sizes[0] != sizes[1]:
        raise ValueError(f"batching dims must have the same sizes; got {sizes[0]} (operand) and {sizes[1]} (indices)")


def gather_type(
    operand: AnyTensorType,
    start_indices: AnyTensorType,
    *,
    offset_dims: Sequence[int],
    collapsed_slice_dims: Sequence[int],
    operand_batching_dims: Sequence[int],
    start_indices_batching_dims: Sequence[int],
    start_index_map: Sequence[int],
    index_vector_dim: int,
    slice_sizes: Sequence[int],
) -> AnyTensorType:
    shape = shape_of(operand)
    batch = list(_batch_shape(start_indices, index_vector_dim, start_index_map, "start_index_map"))
    check_dims((*collapsed_slice_dims, *operand_batching_dims), len(shape), "collapsed and batching dims")
    check_dims((*start_index_map, *operand_batching_dims), len(shape), "start_index_map and batching dims")
    check_length(slice_sizes, len(shape), "slice_sizes")
    _check_batching(
        shape, shape_of(start_indices), operand_batching_dims, start_indices_batching_dims, index_vector_dim
    )
    for what, dims in (("offset_dims", offset_dims), ("collapsed_slice_dims", collapsed_slice_dims)):
        check_sorted(dims, what)
    check_sorted(operand_batching_dims, "operand_batching_dims")
    for dim, (size, slice_size) in enumerate(zip(shape, slice_sizes, strict=True)):
        removed = dim in collapsed_slice_dims or dim in operand_batching_dims
        if not 0 <= slice_size <= size or (removed and slice_size > 1):
            raise ValueError(
                f"slice_sizes is {list(slice_sizes)} for {operand}: dimension {dim} must be "
                f"0 to {min(size, 1) if removed else size}"
            )
    offsets = [n for d, n in enumerate(slice_sizes) if d not in collapsed_slice_dims and d not in operand_batching_dims]
    check_length(offset_dims, len(offsets), "offset_dims")
    check_dims(offset_dims, len(batch) + len(offsets), "offset_dims")
    window = dict(zip(offset_dims, offsets, strict=True))
    batch_sizes = iter(batch)
    result = [window[d] if d in window else next(batch_sizes) for d in range(len(batch) + len(offsets))]
    return tensor_type(dtype_of(operand), result)


def scatter_type(
    operand: AnyTensorType,
    indices: AnyTensorType,
    updates: AnyTensorType,
    *,
    kind: str,
    update_window_dims: Sequence[int],
    inserted_window_dims: Sequence[int],
    input_batching_dims: Sequence[int],
    scatter_indices_batching_dims: Sequence[int],
    scatter_dims_to_operand_dims: Sequence[int],
    index_vector_dim: int,
) -> AnyTensorType:
    if kind not in SCATTER_KINDS:
        raise ValueError(f"kind must be one of {', '.join(SCATTER_KINDS)}; got {kind!r}")
    check_dtype(dtype_of(operand), DTYPES if kind == "set" else DTYPES - FLOATS8)
    shape, update_shape = shape_of(operand), shape_of(updates)
    batch = _batch_shape(indices, index_vector_dim, scatter_dims_to_operand_dims, "scatter_dims_to_operand_dims")
    check_dims((*inserted_window_dims, *input_batching_dims), len(shape), "inserted and batching dims")
    check_dims(
        (*scatter_dims_to_operand_dims, *input_batching_dims),
        len(shape),
        "scatter_dims_to_operand_dims and batching dims",
    )
    _check_batching(shape, shape_of(indices), input_batching_dims, scatter_indices_batching_dims, index_vector_dim)
    for what, dims in (("update_window_dims", update_window_dims), ("inserted_window_dims", inserted_window_dims)):
        check_sorted(dims, what)
    check_sorted(input_batching_dims, "input_batching_dims")
    check_dims(update_window_dims, len(update_shape), "update_window_dims")
    if dtype_of(updates) != dtype_of(operand):
        raise ValueError(f"updates must have the dtype of the input {operand}; got {updates}")
    outer = tuple(size for dim, size in enumerate(update_shape) if dim not in update_window_dims)
    if outer != batch:
        raise ValueError(f"updates {updates} have batch shape {list(outer)}; the indices {indices} {list(batch)}")
    window_dims = [d for d in range(len(shape)) if d not in inserted_window_dims and d not in input_batching_dims]
    check_length(update_window_dims, len(window_dims), "update_window_dims")
    for of_update, of_input in zip(update_window_dims, window_dims, strict=True):
        if update_shape[of_update] > shape[of_input]:
            raise ValueError(
                f"updates {updates} are wider in dimension {of_update} than the input {operand} in dimension {of_input}"
            )
    return operand


def _check_starts(operand: AnyTensorType, starts: Sequence[AnyTensorType]) -> None:
    check_length([0] * len(starts), len(shape_of(operand)), "starts")
    for start in starts:
        check_dtype(dtype_of(start), INTEGERS, "starts")
        if shape_of(start) or start != starts[0]:
            raise ValueError(f"starts must be 0-d integers of one dtype; got {start} beside {starts[0]}")


def dynamic_slice_type(operand: AnyTensorType, starts: Sequence[AnyTensorType], sizes: Sequence[int]) -> AnyTensorType:
    shape = shape_of(operand)
    _check_starts(operand, starts)
    check_length(sizes, len(shape), "sizes")
    for dim, (size, slice_size) in enumerate(zip(shape, sizes, strict=True)):
        if not 0 <= slice_size <= size:
            raise ValueError(f"sizes is {list(sizes)}: dimension {dim} of {operand} has only {size} elements")
    return tensor_type(dtype_of(operand), sizes)


def dynamic_update_slice_type(
    operand: AnyTensorType, update: AnyTensorType, starts: Sequence[AnyTensorType]
) -> AnyTensorType:
    _check_starts(operand, starts)
    if dtype_of(update) != dtype_of(operand):
        raise ValueError(f"update must have the dtype of the operand {operand}; got {update}")
    check_length(shape_of(update), len(shape_of(operand)), "shape of update")
    for dim, (size, update_size) in enumerate(zip(shape_of(operand), shape_of(update), strict=True)):
        if update_size > size:
            raise ValueError(f"update {update} is wider than the operand {operand} in dimension {dim}")
    return operand
