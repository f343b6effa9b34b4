"""Values that no tensor operand feeds: constants, counters, and the run-time numbers of a pack."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl.dialects.builtin import (
    AnyTensorType,
    ArrayAttr,
    ComplexType,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
)
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from lazytpu.ir.base import TENSOR, TensorOp, check_dim, check_dtype, integer
from lazytpu.ir.types import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    dtype_of,
    element_type,
    is_complex,
    is_float,
    numel,
    numpy_dtype,
    shape_of,
    tensor_type,
)


@irdl_op_definition
class ConstantOp(TensorOp):
    """A tensor whose elements are all `value`: a FloatAttr, an IntegerAttr (also for `i1`), or for a complex dtype an
    ArrayAttr of two FloatAttrs. A scalar attribute, because xDSL's dense splats do not keep -inf and NaN."""

    name = "lazytpu.constant"
    value = prop_def(Attribute)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        check_scalar(self.value, dtype_of(self.result_type()))
        return (self.result_type(),)


@irdl_op_definition
class DenseConstantOp(TensorOp):
    """A small table: `data` is its bytes in hexadecimal, little-endian, row-major (one byte per element of `i1`)."""

    name = "lazytpu.dense_constant"
    data = prop_def(StringAttr)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        dtype, shape = dtype_of(self.result_type()), shape_of(self.result_type())
        digits = 2 * numel(shape) * numpy_dtype(dtype).itemsize
        if len(self.data.data) != digits:
            raise ValueError(f"{self.result_type()} needs {digits} hexadecimal digits; got {len(self.data.data)}")
        bytes.fromhex(self.data.data)
        return (self.result_type(),)


@irdl_op_definition
class IotaOp(TensorOp):
    """Each element is its own index along `dim`."""

    name = "lazytpu.iota"
    dim = prop_def(IntegerAttr)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (iota_type(dtype_of(self.result_type()), shape_of(self.result_type()), integer(self.dim)),)


@irdl_op_definition
class NumberOp(TensorOp):
    """Element `index` of a 1-D pack of run-time numbers, as a 0-d tensor."""

    name = "lazytpu.number"
    pack = operand_def(TENSOR)
    index = prop_def(IntegerAttr)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (number_type(self.operand_type(0), integer(self.index)),)


def iota_type(dtype: str, shape: Sequence[int], dim: int) -> AnyTensorType:
    check_dtype(dtype, INTEGERS | FLOATS | COMPLEX, "result")
    check_dim(dim, len(shape))
    return tensor_type(dtype, shape)


def number_type(pack: AnyTensorType, index: int) -> AnyTensorType:
    shape = shape_of(pack)
    if len(shape) != 1 or not 0 <= index < shape[0]:
        raise ValueError(f"expected a 1-D pack with more than {index} numbers; got {pack}")
    return tensor_type(dtype_of(pack), ())


def scalar(value: bool | int | float | complex, dtype: str) -> Attribute:
    """The attribute that holds a Python number as `dtype`. Floats round to nearest even (beyond the largest: infinity);
    a number that the dtype cannot hold, such as 0.5 as i32 or 300 as ui8, is a ValueError."""
    if is_complex(dtype):
        part = ComplexType.get_element_type(element_type(dtype))  # type: ignore[arg-type]
        number = complex(value)
        return ArrayAttr([_float(number.real, part), _float(number.imag, part)])
    if isinstance(value, complex):
        if value.imag != 0:
            raise ValueError(f"{value} has an imaginary part; expected a real number for {dtype}")
        value = value.real
    if is_float(dtype):
        return _float(float(value), element_type(dtype))
    if dtype == "i1":
        return IntegerAttr(int(bool(value)), IntegerType(1))
    if not math.isfinite(value) or int(value) != value:
        raise ValueError(f"{value} is not a whole number; expected one for {dtype}")
    return _integer(int(value), dtype)


def _integer(value: int, dtype: str) -> Attribute:
    kind = element_type(dtype)
    assert isinstance(kind, IntegerType)
    if kind.normalized_value(value) is None:
        raise ValueError(f"{value} does not fit {dtype}")
    return IntegerAttr(value, kind)


def _float(value: float, kind: Attribute) -> Attribute:
    try:
        return FloatAttr(value, kind)  # type: ignore[arg-type]
    except OverflowError:
        return FloatAttr(math.copysign(math.inf, value), kind)  # type: ignore[arg-type]


def check_scalar(value: Attribute, dtype: str) -> None:
    """Raises ValueError unless `value` is the kind of attribute that `scalar` makes for `dtype`."""
    element = element_type(dtype)
    if isinstance(element, ComplexType):
        parts = value.data if isinstance(value, ArrayAttr) else ()
        if len(parts) == 2 and all(isinstance(p, FloatAttr) and p.type == element.element_type for p in parts):
            return
    elif isinstance(value, FloatAttr | IntegerAttr) and value.type == element:
        return
    raise ValueError(f"value {value} is not a number of dtype {dtype}")


def number_of(value: Attribute) -> bool | int | float | complex:
    """The Python number that a `constant`'s value holds."""
    match value:
        case FloatAttr():
            return value.value.data
        case IntegerAttr():
            return bool(value.value.data) if value.type == IntegerType(1) else value.value.data
        case ArrayAttr(data=(FloatAttr() as re, FloatAttr() as im)):
            return complex(re.value.data, im.value.data)
        case _:
            raise ValueError(f"{value} is not a scalar constant")
