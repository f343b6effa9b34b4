"""Sorting."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AnyTensorType
from xdsl.irdl import irdl_op_definition, prop_def, var_operand_def, var_result_def

from lazytpu.ir.base import FALSE, FLAG, INT, TENSOR, TensorOp, check_dim, check_dtype, integer
from lazytpu.ir.types import BOOL, FLOATS, INTEGERS, dtype_of, shape_of


@irdl_op_definition
class SortOp(TensorOp):
    """All inputs, reordered along `dim` by a stable sort of the first. NaN is the largest; -0.0 equals 0.0."""

    name = "lazytpu.sort"
    inputs = var_operand_def(TENSOR)
    dim = prop_def(INT)
    descending = prop_def(FLAG, FALSE)
    outputs = var_result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return sort_types([self.operand_type(i) for i in range(len(self.operands))], integer(self.dim))


def sort_types(inputs: Sequence[AnyTensorType], dim: int) -> list[AnyTensorType]:
    if not inputs:
        raise ValueError("sort needs at least one operand")
    check_dtype(dtype_of(inputs[0]), FLOATS | INTEGERS | BOOL, "a first operand")
    check_dim(dim, len(shape_of(inputs[0])))
    for operand in inputs:
        if shape_of(operand) != shape_of(inputs[0]):
            raise ValueError(f"operands must have the same shape; got {inputs[0]} and {operand}")
    return list(inputs)
