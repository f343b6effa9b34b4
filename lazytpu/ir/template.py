"""Calls of templates: JAX functions that are lowered and inlined by emit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar, TypeAlias

from xdsl.dialects.builtin import (
    AnyTensorType,
    ArrayAttr,
    DictionaryAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    StringAttr,
    f64,
    i64,
)
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, prop_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.hints import isa

from lazytpu.ir.base import TENSOR, WORD, TensorOp
from lazytpu.ir.literals import parse_literal, to_text
from lazytpu.ir.symbolic import Derivation, Size

SIZED_PARAMS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("convolution", "convolution_weight_gradient"), frozenset({"high"})),
    **dict.fromkeys(("max_pool", "max_pool_backward", "window_sum"), frozenset({"high"})),
    "pivots_to_permutation": frozenset({"size"}),
}
"""Template -> its parameters that may be sizes: for a window, its extent beyond the end. All others are the same at all
sizes."""


@irdl_op_definition
class TemplateOp(TensorOp):
    """A call of the function registered as `name` in lowering/templates, with static `params`. The result types are
    those that the function returns."""

    name = "lazytpu.template"
    HEAD: ClassVar = "name"
    inputs = var_operand_def(TENSOR)
    template_name = prop_def(WORD, prop_name="name")
    params = prop_def(DictionaryAttr, DictionaryAttr({}))
    outputs = var_result_def(TENSOR)

    @property
    def sized(self) -> AbstractSet[str]:
        """The parameters that may be sizes."""
        return SIZED_PARAMS.get(self.template_name.data, frozenset())

    @property
    def arguments(self) -> dict[str, Any]:
        """The static parameters as Python values."""
        return {name: from_attribute(value) for name, value in self.params.data.items()}

    def print_property(self, name: str, printer: Printer) -> None:
        if name == "params":
            with printer.in_braces():
                printer.print_list(self.params.data.items(), lambda item: _print_param(item[0], item[1], printer))
        else:
            super().print_property(name, printer)

    @classmethod
    def parse_property(cls, name: str, parser: Parser) -> Attribute:
        if name != "params":
            return super().parse_property(name, parser)
        entries = parser.parse_comma_separated_list(parser.Delimiter.BRACES, lambda: _parse_param(parser))
        return DictionaryAttr(dict(entries))

    def infer(self) -> Sequence[AnyTensorType]:
        for name, value in self.params.data.items():
            if to_attribute(from_attribute(value)) != value:
                raise ValueError(f"parameter {name} is {value}; expected an i1, i64, f64, string or array of them")
        return [self.result_type(i) for i in range(len(self.results))]


Param: TypeAlias = "bool | int | float | str | Size | Sequence[Param]"
"A static parameter."


def to_attribute(value: Param) -> Attribute:
    """A parameter as an attribute: i1, i64, f64, string or array."""
    match value:
        case bool():
            return IntegerAttr(int(value), IntegerType(1))
        case int():
            return IntegerAttr(value, i64)
        case float():
            return FloatAttr(math.nan if math.isnan(value) else value, f64)
        case Size():
            assert Derivation.active is not None
            return Derivation.active.attach(IntegerAttr(value.value, i64), value)
        case str():
            return StringAttr(value)
        case tuple() | list():  # a list reads back as a tuple
            return ArrayAttr([to_attribute(v) for v in value])
        case _:
            raise ValueError(f"a template parameter must be a bool, int, float, str or a tuple of them; got {value!r}")


def from_attribute(value: Attribute) -> Param:
    """The inverse of `to_attribute`."""
    if Derivation.active is not None and (symbolic := Derivation.active.attached(value)) is not None:
        return symbolic
    match value:
        case IntegerAttr():
            return bool(value.value.data) if value.type == IntegerType(1) else value.value.data
        case FloatAttr():
            return value.value.data
        case StringAttr():
            return value.data
        case ArrayAttr():
            return tuple(from_attribute(v) for v in value)
        case _:
            raise ValueError(f"{value} is not a template parameter")


def _print_param(name: str, value: Attribute, printer: Printer) -> None:
    printer.print_string(f"{name} = ")
    _print_attribute(value, printer)


def _print_attribute(value: Attribute, printer: Printer) -> None:
    if isa(value, ArrayAttr[Attribute]):
        with printer.in_parens():
            printer.print_list(value, lambda v: _print_attribute(v, printer))
    elif isinstance(value, StringAttr):
        printer.print_string_literal(value.data)
    else:
        printer.print_string(to_text(value))


def _parse_param(parser: Parser) -> tuple[str, Attribute]:
    name = parser.parse_identifier(" (a parameter)")
    parser.parse_punctuation("=")
    return name, _parse_attribute(parser)


def _parse_attribute(parser: Parser) -> Attribute:
    values = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_attribute(parser))
    if values is not None:
        return ArrayAttr(values)
    if (text := parser.parse_optional_str_literal()) is not None:
        return StringAttr(text)
    literal = parse_literal(parser)
    assert not isinstance(literal, tuple)
    return to_attribute(literal)
