"""Calls of custom kernels: functions written in JAX or Pallas outside of lazytpu."""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

from xdsl.dialects.builtin import AnyTensorType, StringAttr
from xdsl.ir import Attribute
from xdsl.irdl import irdl_op_definition, prop_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from lazytpu.ir.base import TENSOR, WORD, TensorOp
from lazytpu.ir.padding_rule import PaddingRule
from lazytpu.ir.sharding import ShardingRule
from lazytpu.ir.types import shape_of

_KEY = re.compile(r"[A-Za-z_]\w*_[0-9a-f]{16}")


@irdl_op_definition
class JaxCallOp(TensorOp):
    """A call of the custom kernel `body`: its name, and 16 digits of a digest of its contents. The body itself is a
    resource of the module. The kernel determines the result types. `sharding` says how operands and results may be
    divided (`lazytpu.ir.sharding`), and `padding` which sizes may have padding behind them (`lazytpu.ir.padding_rule`);
    both may be empty. Passes do not look inside: a call is pure, and equal calls are merged."""

    name = "lazytpu.jax_call"
    HEAD: ClassVar = "body"
    inputs = var_operand_def(TENSOR)
    body = prop_def(WORD)
    sharding = prop_def(StringAttr, StringAttr(""))
    padding = prop_def(StringAttr, StringAttr(""))
    outputs = var_result_def(TENSOR)

    @property
    def sized(self) -> AbstractSet[str]:
        """The sizes of the results after the first."""
        return {f"result{i}" for i in range(1, len(self.results))}

    def print_property(self, name: str, printer: Printer) -> None:
        if name == "body":
            printer.print_resource_handle("lazytpu", self.body.data)
        else:
            super().print_property(name, printer)

    @classmethod
    def parse_property(cls, name: str, parser: Parser) -> Attribute:
        if name != "body":
            return super().parse_property(name, parser)
        return StringAttr(parser.parse_identifier(" (the key of a kernel's body)"))

    def infer(self) -> Sequence[AnyTensorType]:
        if not _KEY.fullmatch(self.body.data):
            raise ValueError(f"body is {self.body.data!r}; expected a name, _, and 16 hexadecimal digits")
        shapes = [[shape_of(value) for value in values] for values in (self.operands, self.results)]
        if self.sharding.data:
            ShardingRule.parse(self.sharding.data).check(*shapes)
        if self.padding.data:
            PaddingRule.parse(self.padding.data).check(*shapes)
        return [self.result_type(i) for i in range(len(self.results))]
