"""Calls of templates: JAX functions that emission lowers and splices in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

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

from lazytpu.ir.base import TENSOR, TensorOp


@irdl_op_definition
class TemplateOp(TensorOp):
    """The function registered as `name` in lowering/templates, with static `params`; it must return the result types."""

    name = "lazytpu.template"
    inputs = var_operand_def(TENSOR)
    template_name = prop_def(StringAttr, prop_name="name")
    params = prop_def(DictionaryAttr)
    outputs = var_result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return [self.result_type(i) for i in range(len(self.results))]


Param: TypeAlias = "bool | int | float | str | tuple[Param, ...]"
"What a static parameter may be."


def to_attribute(value: Param) -> Attribute:
    """A parameter as an attribute: i1, i64, f64, string or array."""
    match value:
        case bool():
            return IntegerAttr(int(value), IntegerType(1))
        case int():
            return IntegerAttr(value, i64)
        case float():
            return FloatAttr(value, f64)
        case str():
            return StringAttr(value)
        case tuple() | list():
            return ArrayAttr([to_attribute(v) for v in value])
    raise ValueError(f"a template parameter is a bool, int, float, str or a tuple of them; got {value!r}")


def from_attribute(value: Attribute) -> Param:
    """The parameter that `to_attribute` made an attribute of."""
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
