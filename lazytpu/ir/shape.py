"""Ops that only move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import AnyTensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def, var_operand_def

from lazytpu.ir.base import INT, INTS, SIZE_LIST, TENSOR, TensorOp, check_dim, check_dims, check_length, integer
from lazytpu.ir.types import dtype_of, ints, numel, shape_of, tensor_type


@irdl_op_definition
class BroadcastInDimOp(TensorOp):
    """Operand dimension i becomes result dimension dims[i], repeated if its size is 1. The operand is repeated along
    all other result dimensions."""

    name = "lazytpu.broadcast_in_dim"
    operand = operand_def(TENSOR)
    dims = prop_def(INTS)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (broadcast_type(self.operand_type(0), shape_of(self.result_type()), ints(self.dims)),)


@irdl_op_definition
class ReshapeOp(TensorOp):
    """The same elements, in row-major order, with another shape."""

    name = "lazytpu.reshape"
    operand = operand_def(TENSOR)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (reshape_type(self.operand_type(0), shape_of(self.result_type())),)


@irdl_op_definition
class TransposeOp(TensorOp):
    """Result dimension i is operand dimension permutation[i]."""

    name = "lazytpu.transpose"
    BARE: ClassVar = "permutation"
    operand = operand_def(TENSOR)
    permutation = prop_def(INTS)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (transpose_type(self.operand_type(0), ints(self.permutation)),)


@irdl_op_definition
class SliceOp(TensorOp):
    """operand[starts[i] : limits[i] : strides[i], ...] with strides >= 1."""

    name = "lazytpu.slice"
    operand = operand_def(TENSOR)
    starts = prop_def(SIZE_LIST)
    limits = prop_def(SIZE_LIST)
    strides = prop_def(SIZE_LIST)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (slice_type(self.operand_type(0), ints(self.starts), ints(self.limits), ints(self.strides)),)


@irdl_op_definition
class PadOp(TensorOp):
    """Adds `low` and `high` copies of `value` (0-d) at the ends of each dimension (negative: crops), and `interior`
    copies between elements."""

    name = "lazytpu.pad"
    operand = operand_def(TENSOR)
    value = operand_def(TENSOR)
    low = prop_def(SIZE_LIST)
    high = prop_def(SIZE_LIST)
    interior = prop_def(SIZE_LIST)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (
            pad_type(self.operand_type(0), self.operand_type(1), ints(self.low), ints(self.high), ints(self.interior)),
        )


@irdl_op_definition
class ConcatenateOp(TensorOp):
    """The operands, concatenated along `dim`."""

    name = "lazytpu.concatenate"
    inputs = var_operand_def(TENSOR)
    dim = prop_def(INT)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (concatenate_type([self.operand_type(i) for i in range(len(self.operands))], integer(self.dim)),)


@irdl_op_definition
class ReverseOp(TensorOp):
    """The order of elements reversed along `dims`."""

    name = "lazytpu.reverse"
    operand = operand_def(TENSOR)
    dims = prop_def(INTS)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        check_dims(ints(self.dims), len(shape_of(self.operand_type(0))))
        return (self.operand_type(0),)


@irdl_op_definition
class BarrierOp(TensorOp):
    """The operand, which the compiler materializes before any use of the result: nothing is fused across."""

    name = "lazytpu.barrier"
    operand = operand_def(TENSOR)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (self.operand_type(0),)


def broadcast_type(operand: AnyTensorType, shape: Sequence[int], dims: Sequence[int]) -> AnyTensorType:
    source = shape_of(operand)
    check_length(dims, len(source), "dims")
    check_dims(dims, len(shape))
    for size, dim in zip(source, dims, strict=True):
        if size not in (1, shape[dim]):
            raise ValueError(
                f"cannot broadcast {operand} to shape {list(shape)} with dims {list(dims)}: "
                f"size {size} is neither 1 nor {shape[dim]}"
            )
    return tensor_type(dtype_of(operand), shape)


def reshape_type(operand: AnyTensorType, shape: Sequence[int]) -> AnyTensorType:
    if numel(shape) != numel(shape_of(operand)) or any(size < 0 for size in shape):
        raise ValueError(
            f"cannot reshape {operand} ({numel(shape_of(operand))} elements) "
            f"to shape {list(shape)} ({numel(shape)} elements)"
        )
    return tensor_type(dtype_of(operand), shape)


def transpose_type(operand: AnyTensorType, permutation: Sequence[int]) -> AnyTensorType:
    shape = shape_of(operand)
    if sorted(permutation) != list(range(len(shape))):
        raise ValueError(f"{list(permutation)} is not a permutation of the {len(shape)} dimensions of {operand}")
    return tensor_type(dtype_of(operand), [shape[dim] for dim in permutation])


def slice_type(
    operand: AnyTensorType, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]
) -> AnyTensorType:
    shape = shape_of(operand)
    for name, values in (("starts", starts), ("limits", limits), ("strides", strides)):
        check_length(values, len(shape), name)
    result: list[int] = []
    for dim, (size, start, limit, stride) in enumerate(zip(shape, starts, limits, strides, strict=True)):
        if not 0 <= start <= limit <= size or stride < 1:
            raise ValueError(
                f"slice {start}:{limit}:{stride} of dimension {dim} of {operand}: "
                f"expected 0 <= start <= limit <= {size} and stride >= 1"
            )
        result.append(-((start - limit) // stride))
    return tensor_type(dtype_of(operand), result)


def pad_type(
    operand: AnyTensorType, value: AnyTensorType, low: Sequence[int], high: Sequence[int], interior: Sequence[int]
) -> AnyTensorType:
    shape = shape_of(operand)
    if value != tensor_type(dtype_of(operand), ()):
        raise ValueError(f"the padding value must be 0-d with dtype {dtype_of(operand)}; got {value}")
    for name, values in (("low", low), ("high", high), ("interior", interior)):
        check_length(values, len(shape), name)
    result: list[int] = []
    for dim, (size, before, after, between) in enumerate(zip(shape, low, high, interior, strict=True)):
        padded = size + max(size - 1, 0) * between + before + after
        if padded < 0 or between < 0:
            raise ValueError(
                f"padding ({before}, {after}, {between}) makes dimension {dim} of {operand} {padded} elements long; "
                "expected at least 0, and interior padding of at least 0"
            )
        result.append(padded)
    return tensor_type(dtype_of(operand), result)


def concatenate_type(operands: Sequence[AnyTensorType], dim: int) -> AnyTensorType:
    if not operands:
        raise ValueError("concatenate needs at least one operand")
    first = shape_of(operands[0])
    check_dim(dim, len(first))
    total = 0
    for operand in operands:
        shape = shape_of(operand)
        if dtype_of(operand) != dtype_of(operands[0]) or len(shape) != len(first):
            raise ValueError(f"operands must have one dtype and rank; got {operands[0]} and {operand}")
        if shape[:dim] + shape[dim + 1 :] != first[:dim] + first[dim + 1 :]:
            raise ValueError(f"operands may differ only in dimension {dim}; got {operands[0]} and {operand}")
        total += shape[dim]
    return tensor_type(dtype_of(operands[0]), (*first[:dim], total, *first[dim + 1 :]))
