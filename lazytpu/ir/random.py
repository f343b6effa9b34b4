"""Random bits, as a pure function of seed and offset."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import AnyTensorType
from xdsl.irdl import irdl_op_definition, operand_def, opt_operand_def, result_def

from lazytpu.ir.base import TENSOR, TensorOp, check_dtype
from lazytpu.ir.types import dtype_of, shape_of, tensor_type


@irdl_op_definition
class RandomBitsOp(TensorOp):
    """Uniform random bits (ui32 or ui64): Threefry-2x32 with the key threefry(seed; offset) and each element's
    row-major index as the counter (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). An `index`
    (ui32, of the shape of the result) counts elements in another way."""

    name = "lazytpu.random_bits"
    seed = operand_def(TENSOR)
    offset = operand_def(TENSOR)
    index = opt_operand_def(TENSOR)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        result, index = self.result_type(), self.operand_type(2) if len(self.operands) > 2 else None
        return (
            random_bits_type(self.operand_type(0), self.operand_type(1), shape_of(result), dtype_of(result), index),
        )


def random_bits_type(
    seed: AnyTensorType, offset: AnyTensorType, shape: Sequence[int], dtype: str, index: AnyTensorType | None = None
) -> AnyTensorType:
    for name, operand in (("seed", seed), ("offset", offset)):
        if operand != tensor_type("ui64", ()):
            raise ValueError(f"{name} must be tensor<ui64>; got {operand}")
    if index is not None and index != tensor_type("ui32", shape):
        raise ValueError(f"index must be ui32 with the shape of the result, {list(shape)}; got {index}")
    check_dtype(dtype, frozenset(("ui32", "ui64")), "a result")
    return tensor_type(dtype, shape)
