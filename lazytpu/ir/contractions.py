"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from xdsl.dialects.builtin import AnyTensorType, StringAttr
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from lazytpu.ir.base import (
    INT,
    INTS,
    NONE,
    ONE,
    SIZE_LIST,
    TENSOR,
    WORD,
    TensorOp,
    check_dims,
    check_dtype,
    check_length,
    integer,
    one_of,
)
from lazytpu.ir.reductions import windowed_shape
from lazytpu.ir.types import COMPLEX, FLOATS, INTEGERS, dtype_of, ints, shape_of, string, tensor_type

NUMBERS = INTEGERS | FLOATS | COMPLEX
PRECISIONS = ("default", "high", "highest")


@irdl_op_definition
class DotGeneralOp(TensorOp):
    """Sums products over the contracted dims; the result dims are batch, rest of lhs, rest of rhs. The result dtype may
    be wider than the operands' (bf16 x bf16 accumulated and returned in f32)."""

    name = "lazytpu.dot_general"
    lhs = operand_def(TENSOR)
    rhs = operand_def(TENSOR)
    lhs_batch = prop_def(INTS, NONE)
    rhs_batch = prop_def(INTS, NONE)
    lhs_contract = prop_def(INTS)
    rhs_contract = prop_def(INTS)
    precision = prop_def(WORD)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        one_of(self.precision, PRECISIONS, "precision")
        return (
            dot_general_type(
                self.operand_type(0),
                self.operand_type(1),
                ints(self.lhs_batch),
                ints(self.rhs_batch),
                ints(self.lhs_contract),
                ints(self.rhs_contract),
                dtype_of(self.result_type()),
            ),
        )


@irdl_op_definition
class ConvolutionOp(TensorOp):
    """StableHLO's convolution, a correlation: the kernel is flipped only in dimensions where `window_reversal` is set.
    `layout` names the dimensions of input, kernel and result, as in "NC01,OI01,NC01"."""

    name = "lazytpu.convolution"
    input = operand_def(TENSOR)
    kernel = operand_def(TENSOR)
    strides = prop_def(INTS)
    low = prop_def(INTS)
    high = prop_def(SIZE_LIST)
    lhs_dilation = prop_def(INTS)
    rhs_dilation = prop_def(INTS)
    window_reversal = prop_def(INTS)
    feature_groups = prop_def(INT, ONE)
    batch_groups = prop_def(INT, ONE)
    layout = prop_def(WORD)
    precision = prop_def(WORD)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        one_of(self.precision, PRECISIONS, "precision")
        return (
            convolution_type(
                self.operand_type(0),
                self.operand_type(1),
                ints(self.strides),
                ints(self.low),
                ints(self.high),
                ints(self.lhs_dilation),
                ints(self.rhs_dilation),
                ints(self.window_reversal),
                integer(self.feature_groups),
                integer(self.batch_groups),
                conv_layout(self.layout.data),
                dtype_of(self.result_type()),
            ),
        )


def precision(name: str) -> StringAttr:
    """The property for one of `PRECISIONS`."""
    return string(one_of(string(name), PRECISIONS, "precision"))


def dot_general_type(
    lhs: AnyTensorType,
    rhs: AnyTensorType,
    lhs_batch: Sequence[int],
    rhs_batch: Sequence[int],
    lhs_contract: Sequence[int],
    rhs_contract: Sequence[int],
    dtype: str,
) -> AnyTensorType:
    lhs_shape, rhs_shape = shape_of(lhs), shape_of(rhs)
    if dtype_of(lhs) != dtype_of(rhs):
        raise ValueError(f"operands must have the same dtype; got {lhs} and {rhs}")
    check_dtype(dtype_of(lhs), NUMBERS, "operands")
    for what, shape, batch, contract in (
        ("lhs", lhs_shape, lhs_batch, lhs_contract),
        ("rhs", rhs_shape, rhs_batch, rhs_contract),
    ):
        check_dims((*batch, *contract), len(shape), f"batch and contracted dims of {what}")
    for what, of_left, of_right in (("batch", lhs_batch, rhs_batch), ("contracted", lhs_contract, rhs_contract)):
        sizes = [lhs_shape[d] for d in of_left], [rhs_shape[d] for d in of_right]
        if sizes[0] != sizes[1]:
            raise ValueError(f"{what} dims of {lhs} and {rhs} must have the same sizes; got {sizes[0]} and {sizes[1]}")
    batch = [lhs_shape[d] for d in lhs_batch]
    free = [size for d, size in enumerate(lhs_shape) if d not in lhs_batch and d not in lhs_contract]
    free += [size for d, size in enumerate(rhs_shape) if d not in rhs_batch and d not in rhs_contract]
    return tensor_type(dtype, batch + free)


@dataclass(frozen=True)
class ConvLayout:
    """The dimension numbers of a convolution's operands and result; spatial ones in the order of their digits."""

    input_batch: int
    input_feature: int
    input_spatial: tuple[int, ...]
    kernel_out: int
    kernel_in: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]


@lru_cache(maxsize=64)
def conv_layout(text: str) -> ConvLayout:
    """Parse a layout such as "NC01,OI01,NC01": N and C are batch and feature, O and I output and input feature, digits
    the spatial dimensions. Raises ValueError when it is malformed."""
    operands = text.split(",")
    if len(operands) != 3:
        raise ValueError(f'layout {text!r}: expected input, kernel and result, as in "NC01,OI01,NC01"')
    digits = "".join(str(d) for d in range(len(operands[0]) - 2))
    for operand, letters in zip(operands, ("NC", "OI", "NC"), strict=True):
        if sorted(operand) != sorted(letters + digits):
            raise ValueError(f"layout {text!r}: expected the characters {letters + digits} in {operand!r}")
    x, kernel, result = operands
    x_spatial, kernel_spatial, result_spatial = (tuple(operand.index(d) for d in digits) for operand in operands)
    return ConvLayout(
        *(x.index("N"), x.index("C"), x_spatial),
        *(kernel.index("O"), kernel.index("I"), kernel_spatial),
        *(result.index("N"), result.index("C"), result_spatial),
    )


def convolution_type(
    x: AnyTensorType,
    kernel: AnyTensorType,
    strides: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    window_reversal: Sequence[int],
    feature_groups: int,
    batch_groups: int,
    layout: ConvLayout,
    dtype: str,
) -> AnyTensorType:
    shape, window = shape_of(x), shape_of(kernel)
    rank = len(layout.input_spatial) + 2
    if len(shape) != rank or len(window) != rank or dtype_of(x) != dtype_of(kernel):
        raise ValueError(f"expected input and kernel of rank {rank} with the same dtype; got {x} and {kernel}")
    check_dtype(dtype_of(x), NUMBERS, "an input")
    check_length(window_reversal, rank - 2, "window_reversal")
    batch, features = shape[layout.input_batch], shape[layout.input_feature]
    out, kernel_features = window[layout.kernel_out], window[layout.kernel_in]
    if feature_groups < 1 or batch_groups < 1 or (feature_groups > 1 and batch_groups > 1):
        raise ValueError(f"expected one group count to be 1; got feature {feature_groups}, batch {batch_groups}")
    if features != kernel_features * feature_groups:
        raise ValueError(
            f"{x} has {features} input features; the kernel {kernel} takes {kernel_features} in each of "
            f"{feature_groups} groups"
        )
    if out % feature_groups or out % batch_groups or batch % batch_groups:
        raise ValueError(
            f"{out} output features and a batch of {batch} do not divide into "
            f"{feature_groups} feature groups and {batch_groups} batch groups"
        )
    spatial = windowed_shape(
        [shape[d] for d in layout.input_spatial],
        [window[d] for d in layout.kernel_spatial],
        strides,
        low,
        high,
        lhs_dilation,
        rhs_dilation,
    )
    result = [0] * rank
    result[layout.output_batch] = batch // batch_groups
    result[layout.output_feature] = out
    for dim, size in zip(layout.output_spatial, spatial, strict=True):
        result[dim] = size
    return tensor_type(dtype, result)
