"""Ops without tensor operands: constants, iotas, and run-time numbers, which are read from a pack."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar, Self

from xdsl.dialects.builtin import AnyTensorType, StringAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from lazytpu.ir import assembly
from lazytpu.ir.base import INT, TENSOR, WORD, TensorOp, check_dim, check_dtype, integer
from lazytpu.ir.literals import Literal, check_scalar, from_bytes, from_literal, parse_literal, to_bytes, to_text
from lazytpu.ir.literals import number_of as number_of
from lazytpu.ir.literals import scalar as scalar
from lazytpu.ir.sizes import RECIPROCAL
from lazytpu.ir.types import (
    COMPLEX,
    FLOATS,
    INTEGERS,
    dtype_of,
    numel,
    numpy_dtype,
    shape_of,
    tensor_type,
)

READABLE = 16
"The most elements of a table that are printed as numbers."


@irdl_op_definition
class ConstantOp(TensorOp):
    """A tensor whose elements are all `value`: a FloatAttr, an IntegerAttr (also for `i1`), or for a complex dtype an
    ArrayAttr of two FloatAttrs. It is a scalar attribute because xDSL's dense splats do not preserve -inf and NaN."""

    name = "lazytpu.constant"
    value = prop_def(Attribute)
    result = result_def(TENSOR)

    @property
    def sized(self) -> AbstractSet[str]:
        return {"value", RECIPROCAL}

    def print(self, printer: Printer) -> None:
        value = self.properties.get("value")
        try:
            printer.print_string(f" {to_text(value)}" if value is not None else "")
        except ValueError:  # invalid modules are printed too, for error messages
            printer.print_string(f" {value}")
        assembly.print_tail(self, printer)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        position = parser.pos
        literal = parse_literal(parser)
        op = assembly.parse_tail(cls, parser, (), {})
        op.properties["value"] = _read(literal, op.result_type(), parser, position)
        return op

    def infer(self) -> Sequence[AnyTensorType]:
        check_scalar(self.value, dtype_of(self.result_type()))
        return (self.result_type(),)


@irdl_op_definition
class DenseConstantOp(TensorOp):
    """A small table. `data` is its bytes in hexadecimal, little-endian, row-major, one byte per element for `i1`."""

    LOCAL: ClassVar = False  # tables may be large
    name = "lazytpu.dense_constant"
    data = prop_def(WORD)
    result = result_def(TENSOR)

    def print(self, printer: Printer) -> None:
        if isinstance(data := self.properties.get("data"), StringAttr):
            elements = self._elements(data.data)
            text = f'"{data.data}"' if elements is None else f"[{', '.join(map(to_text, elements))}]"
            printer.print_string(f" {text}")
        assembly.print_tail(self, printer)

    def _elements(self, data: str) -> list[Attribute] | None:
        """The numbers of a short table; None for long ones, and for NaNs whose bits the numbers do not preserve."""
        try:
            dtype, shape = dtype_of(self.result_type()), shape_of(self.result_type())
            if numel(shape) > READABLE:
                return None
            elements = from_bytes(bytes.fromhex(data), dtype)
        except ValueError:  # invalid modules are printed too, for error messages
            return None
        return elements if b"".join(map(to_bytes, elements)).hex() == data else None

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        data = parser.parse_optional_str_literal()
        if data is not None:
            return assembly.parse_tail(cls, parser, (), {"data": StringAttr(data)})
        position = parser.pos
        numbers = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: parse_literal(parser))
        op = assembly.parse_tail(cls, parser, (), {})
        raw = b"".join(to_bytes(_read(number, op.result_type(), parser, position)) for number in numbers)
        op.properties["data"] = StringAttr(raw.hex())
        return op

    def infer(self) -> Sequence[AnyTensorType]:
        dtype, shape = dtype_of(self.result_type()), shape_of(self.result_type())
        digits = 2 * numel(shape) * numpy_dtype(dtype).itemsize
        if len(self.data.data) != digits:
            raise ValueError(f"{self.result_type()} needs {digits} hexadecimal digits; got {len(self.data.data)}")
        bytes.fromhex(self.data.data)
        return (self.result_type(),)


@irdl_op_definition
class IotaOp(TensorOp):
    """Each element is its index along `dim`."""

    name = "lazytpu.iota"
    dim = prop_def(INT)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (iota_type(dtype_of(self.result_type()), shape_of(self.result_type()), integer(self.dim)),)


@irdl_op_definition
class NumberOp(TensorOp):
    """Element `index` of a 1-D pack of run-time numbers, as a 0-d tensor."""

    name = "lazytpu.number"
    BARE: ClassVar = "index"
    pack = operand_def(TENSOR)
    index = prop_def(INT)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (number_type(self.operand_type(0), integer(self.index)),)


def _read(literal: Literal, result: AnyTensorType, parser: Parser, position: int) -> Attribute:
    try:
        return from_literal(literal, dtype_of(result))
    except ValueError as error:
        parser.raise_error(str(error), position)


def iota_type(dtype: str, shape: Sequence[int], dim: int) -> AnyTensorType:
    check_dtype(dtype, INTEGERS | FLOATS | COMPLEX, "a result")
    check_dim(dim, len(shape))
    return tensor_type(dtype, shape)


def number_type(pack: AnyTensorType, index: int) -> AnyTensorType:
    shape = shape_of(pack)
    if len(shape) != 1 or not 0 <= index < shape[0]:
        raise ValueError(f"expected a 1-D pack with more than {index} numbers; got {pack}")
    return tensor_type(dtype_of(pack), ())
