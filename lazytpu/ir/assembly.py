"""The assembly format of ops: one op per line, in one format for all ops.

    %3 = lazytpu.reduce add %2 dims = [1] : (tensor<4x8xf32>) -> tensor<4xf32> loc("train.py":41:0)
         name         head  operands, properties | types                       source line

The head is a property that is a keyword (`add`, `LT`). One other property may be bare, printed without its name (a
permutation). Properties with their default value are omitted. If all operands and the only result have the same type,
it is printed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self, TypeVar

from xdsl.dialects.builtin import IntegerAttr, StringAttr, TensorType, i1, i64
from xdsl.ir import Attribute
from xdsl.irdl import IRDLOperation, VarResultDef
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer

from lazytpu.ir.literals import is_integer_attr
from lazytpu.ir.types import canonical, int_array, ints, is_int_array


class AssembledOp(IRDLOperation):
    """An op that is printed and parsed in this format."""

    HEAD: ClassVar[str | None] = None
    "The property printed before the operands, a word."
    BARE: ClassVar[str | None] = None
    "The property printed after the operands without its name."

    def print(self, printer: Printer) -> None:
        print_op(self, printer)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        return parse_op(cls, parser)

    def print_property(self, name: str, printer: Printer) -> None:
        print_value(self.properties[name], printer)

    @classmethod
    def parse_property(cls, name: str, parser: Parser) -> Attribute:
        return parse_value(parser)


_Op = TypeVar("_Op", bound=AssembledOp)


def print_value(value: Attribute, printer: Printer) -> None:
    """Print a property: a list of integers, an integer, a boolean, a keyword or a quoted string."""
    if is_int_array(value):
        printer.print_string(str(list(ints(value))))
    elif is_integer_attr(value):
        printer.print_int(value.value.data, value.type)
    elif isinstance(value, StringAttr):
        printer.print_identifier_or_string_literal(value.data)
    else:
        printer.print_attribute(value)


def parse_value(parser: Parser) -> Attribute:
    """Parse a property that `print_value` printed."""
    numbers = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
    if numbers is not None:
        return int_array(numbers)
    if (truth := parser.parse_optional_boolean()) is not None:
        return IntegerAttr(int(truth), i1)
    if (number := parser.parse_optional_integer(allow_boolean=False)) is not None:
        return IntegerAttr(number, i64)
    return StringAttr(parser.parse_identifier_or_str_literal(" or another property value"))


def print_op(op: AssembledOp, printer: Printer) -> None:
    """Print an op, after its name."""
    head, bare = op.HEAD, op.BARE
    if head in op.properties:
        printer.print_string(" ")
        op.print_property(head, printer)
    if op.operands:
        printer.print_string(" ")
        printer.print_list(op.operands, printer.print_operand)
    if bare in op.properties:
        printer.print_string(" ")
        op.print_property(bare, printer)
    for name, definition in op.get_irdl_definition().properties.items():
        if name in (head, bare) or op.properties.get(name) in (None, definition.default_value):
            continue
        printer.print_string(f" {name} = ")
        op.print_property(name, printer)
    print_tail(op, printer)


def print_tail(op: AssembledOp, printer: Printer) -> None:
    """Print the end of an op: attributes and types."""
    printer.print_op_attributes(op.attributes)
    printer.print_string(" : ")
    if _has_one_type(op):
        printer.print_attribute(op.results[0].type)
    else:
        printer.print_function_type(op.operand_types, op.result_types)


def _has_one_type(op: AssembledOp) -> bool:
    results = op.get_irdl_definition().results
    one_result = len(results) == 1 and not isinstance(results[0][1], VarResultDef) and len(op.results) == 1
    return one_result and all(operand.type == op.results[0].type for operand in op.operands)


def parse_op(kind: type[_Op], parser: Parser) -> _Op:
    """Parse an op that `print_op` printed."""
    properties: dict[str, Attribute] = {}
    if kind.HEAD is not None:
        properties[kind.HEAD] = kind.parse_property(kind.HEAD, parser)
    operands = parse_operands(parser)
    if kind.BARE is not None:
        properties[kind.BARE] = kind.parse_property(kind.BARE, parser)
    allowed = kind.get_irdl_definition().properties
    while (name := parser.parse_optional_identifier()) is not None:
        if name not in allowed or name in properties:
            parser.raise_error(f"{kind.name} has no further property {name}; its properties are {', '.join(allowed)}")
        parser.parse_punctuation("=")
        properties[name] = kind.parse_property(name, parser)
    for name, definition in allowed.items():
        if name not in properties and definition.default_value is None:
            parser.raise_error(f"{kind.name} needs the property {name}")
    return parse_tail(kind, parser, operands, properties)


def parse_operands(parser: Parser) -> list[UnresolvedOperand]:
    operands: list[UnresolvedOperand] = []
    while (operand := parser.parse_optional_unresolved_operand()) is not None:
        operands.append(operand)
        if parser.parse_optional_punctuation(",") is None:
            break
    return operands


def parse_tail(
    kind: type[_Op], parser: Parser, operands: Sequence[UnresolvedOperand], properties: dict[str, Attribute]
) -> _Op:
    """Parse attributes and types, and create the op."""
    attributes = parser.parse_optional_attr_dict()
    parser.parse_punctuation(":")
    position = parser.pos
    if (types := parser.parse_optional_function_type()) is not None:
        inputs, outputs = [canonical(t) for t in types.inputs], [canonical(t) for t in types.outputs]
    else:
        shared = canonical(parser.parse_type())
        inputs, outputs = [shared] * len(operands), [shared]
    for value_type in (*inputs, *outputs):
        if not isinstance(value_type, TensorType):
            parser.raise_error(f"{kind.name} expected tensors, got {value_type}", position)
    return kind.create(
        operands=parser.resolve_operands(operands, inputs, position),
        result_types=outputs,
        properties=properties,
        attributes=attributes,
    )
