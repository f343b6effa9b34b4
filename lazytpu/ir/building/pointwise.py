"""Builder methods of constants and elementwise ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import SSAValue

from lazytpu.ir import constants, pointwise
from lazytpu.ir.base import TensorOp
from lazytpu.ir.building.core import Core, integer_prop
from lazytpu.ir.dialect import OPS
from lazytpu.ir.literals import Number, from_bytes, scalar, to_bytes
from lazytpu.ir.types import dtype_of, numpy_dtype, same_type, shape_of, string, tensor_type, type_of

_Kind = TypeVar("_Kind", bound=TensorOp)


def _op_class(name: str, base: type[_Kind]) -> type[_Kind]:
    kind = OPS.get(name)
    if kind is None or not issubclass(kind, base):
        mnemonics = ", ".join(mnemonic for mnemonic, op in OPS.items() if issubclass(op, base))
        count = "one operand" if base is pointwise.UnaryOp else "two operands"
        raise ValueError(f"{name!r} is not an elementwise op of {count}; expected one of {mnemonics}")
    return kind


class PointwiseMethods(Core):
    def constant(self, value: Number, dtype: str, shape: Sequence[int] = ()) -> SSAValue:
        """A tensor of `shape` whose elements are all `value`."""
        return self.one(constants.ConstantOp, (), tensor_type(dtype, shape), {"value": scalar(value, dtype)})

    def array(self, array: ArrayLike, dtype: str) -> SSAValue:
        """A table of numbers, stored in the program; a splat when all its elements have the same bits."""
        elements = np.asarray(array)
        with np.errstate(over="ignore"):  # numbers that are too large become infinity
            data = np.ascontiguousarray(elements, dtype=numpy_dtype(dtype)).reshape(elements.shape)
        result, raw = tensor_type(dtype, data.shape), data.tobytes()
        first = raw[: data.itemsize]
        if data.size and raw == first * data.size:
            value = from_bytes(first, dtype)[0]
            if to_bytes(value) == first:  # false for a signaling NaN
                return self.one(constants.ConstantOp, (), result, {"value": value})
        return self.one(constants.DenseConstantOp, (), result, {"data": StringAttr(raw.hex())})

    def iota(self, dtype: str, shape: Sequence[int], dim: int) -> SSAValue:
        """Each element is its index along `dim`."""
        result = constants.iota_type(dtype, shape, dim)
        return self.one(constants.IotaOp, (), result, {"dim": integer_prop(dim)})

    def number(self, pack: SSAValue, index: int) -> SSAValue:
        """Element `index` of a 1-D pack of run-time numbers (0-d)."""
        result = constants.number_type(type_of(pack), index)
        return self.one(constants.NumberOp, (pack,), result, {"index": integer_prop(index)})

    def unary(self, name: str, x: SSAValue) -> SSAValue:
        """The elementwise op `name` ("exp", "neg", ...) on one operand."""
        kind = _op_class(name, pointwise.UnaryOp)
        return self.one(kind, (x,), kind.result_of(type_of(x)))

    def binary(self, name: str, x: SSAValue, y: SSAValue) -> SSAValue:
        """The elementwise op `name` ("add", "pow", ...) on two operands of the same type."""
        kind = _op_class(name, pointwise.BinaryOp)
        return self.one(kind, (x, y), kind.result_of(type_of(x), type_of(y)))

    def compare(self, direction: str, x: SSAValue, y: SSAValue) -> SSAValue:
        """x `direction` y, one of EQ NE LT LE GT GE, as i1."""
        result = pointwise.compare_type(direction, type_of(x), type_of(y))
        return self.one(pointwise.CompareOp, (x, y), result, {"direction": string(direction)})

    def select(self, pred: SSAValue, on_true: SSAValue, on_false: SSAValue) -> SSAValue:
        """on_true where pred (i1, 0-d or of the same shape) is true, else on_false."""
        result = pointwise.select_type(type_of(pred), type_of(on_true), type_of(on_false))
        return self.one(pointwise.SelectOp, (pred, on_true, on_false), result)

    def clamp(self, low: SSAValue, x: SSAValue, high: SSAValue) -> SSAValue:
        """min(max(x, low), high); the bounds are 0-d or have the shape of x."""
        result = pointwise.clamp_type(type_of(low), type_of(x), type_of(high))
        return self.one(pointwise.ClampOp, (low, x, high), result)

    def convert(self, x: SSAValue, dtype: str) -> SSAValue:
        """x converted to a dtype; x itself when it has that dtype."""
        if dtype_of(x) == dtype:
            return x
        return self.one(pointwise.ConvertOp, (x,), tensor_type(dtype, shape_of(x)))

    def bitcast_convert(self, x: SSAValue, dtype: str, shape: Sequence[int] | None = None) -> SSAValue:
        """The bits of x as `dtype`. If the bit widths differ, a last dimension of their ratio is added or removed."""
        result = pointwise.bitcast_type(type_of(x), dtype)
        if shape is not None and tuple(shape) != shape_of(result):
            raise ValueError(f"the bits of {x.type} as {dtype} have shape {list(shape_of(result))}; got {list(shape)}")
        return x if same_type(result, type_of(x)) else self.one(pointwise.BitcastConvertOp, (x,), result)
