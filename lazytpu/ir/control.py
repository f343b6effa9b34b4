"""Branches and loops: ops with regions.

Regions are isolated from above. A region is one block, which takes every value that it reads as an argument and ends in
`lazytpu.yield`. So a walk over one block finds the definition of each of its values there. For a pass that does not
look inside, an op with regions is a pure op like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import AnyTensorType
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import irdl_op_definition, prop_def, region_def, traits_def, var_operand_def, var_result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsolatedFromAbove, IsTerminator

from lazytpu.ir import assembly
from lazytpu.ir.base import INT, TENSOR, TensorOp, integer, show
from lazytpu.ir.types import dtype_of, shape_of, type_of


@irdl_op_definition
class YieldOp(assembly.AssembledOp):
    """The end of a region: the values that it returns."""

    name = "lazytpu.yield"
    outputs = var_operand_def(TENSOR)
    traits = traits_def(IsTerminator())

    def print(self, printer: Printer) -> None:
        if self.operands:
            printer.print_string(" ")
            printer.print_list(self.operands, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        if self.operands:
            printer.print_string(" : ")
            printer.print_list(self.operand_types, printer.print_attribute)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operands, position = assembly.parse_operands(parser), parser.pos
        attributes = parser.parse_optional_attr_dict()
        types: Sequence[Attribute] = ()
        if operands:
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        types = [assembly.canonical(kind) for kind in types]
        return cls.create(operands=parser.resolve_operands(operands, types, position), attributes=attributes)


class RegionOp(TensorOp):
    """An op with regions, which all take the values `entering`."""

    KEYWORDS: ClassVar[tuple[str, ...]] = ()
    "The word before each region."
    traits = traits_def(IsolatedFromAbove())

    @property
    def entering(self) -> Sequence[SSAValue]:
        """The operands that the regions take, in the order of their arguments."""
        raise NotImplementedError

    def yielded(self, region: int) -> Sequence[SSAValue]:
        """Return the values that a region yields."""
        return self.end(region).operands

    def end(self, region: int) -> YieldOp:
        """Return the terminator of a region."""
        return end_of(self.regions[region].block, self.KEYWORDS[region])

    def check_regions(self) -> None:
        """Raise ValueError unless each region takes the values of `entering`."""
        expected = [value.type for value in self.entering]
        for word, region in zip(self.KEYWORDS, self.regions, strict=True):
            actual = [argument.type for argument in region.block.args]
            if actual != expected:
                raise ValueError(f"the region '{word}' takes {show(actual)}; expected {show(expected)}, its operands")

    def print(self, printer: Printer) -> None:
        assembly.print_op(self, printer)
        for word, region in zip(self.KEYWORDS, self.regions, strict=True):
            printer.print_string(f" {word}")
            if region.block.args:
                with printer.in_parens():
                    printer.print_list(region.block.args, printer.print_ssa_value)
            printer.print_string(" ")
            printer.print_region(region, print_entry_block_args=False, print_empty_block=False)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        op = assembly.parse_op(cls, parser)
        op_regions = [_parse_region(parser, word, [v.type for v in op.entering]) for word in cls.KEYWORDS]
        for region in op_regions:
            op.add_region(region)
        return op


@irdl_op_definition
class IfOp(RegionOp):
    """The results of the region `then` if the condition, a 0-d i1, is true, else those of `else`. Only one is run."""

    name = "lazytpu.if"
    KEYWORDS: ClassVar = ("then", "else")
    inputs = var_operand_def(TENSOR)
    then = region_def("single_block")
    orelse = region_def("single_block")
    outputs = var_result_def(TENSOR)

    @property
    def entering(self) -> Sequence[SSAValue]:
        return self.operands[1:]

    def infer(self) -> Sequence[AnyTensorType]:
        if not self.operands:
            raise ValueError("expected a condition, got no operand")
        check_condition(self.operands[0])
        self.check_regions()
        return if_types(self.yielded(0), self.yielded(1))


@irdl_op_definition
class WhileOp(RegionOp):
    """While the region `while` yields true, the region `do` computes new carried values from the last ones. The
    results are the last carried values. The first `carried` operands are the initial ones; the others are invariants,
    the same in each iteration."""

    name = "lazytpu.while"
    KEYWORDS: ClassVar = ("while", "do")
    inputs = var_operand_def(TENSOR)
    carried = prop_def(INT)
    cond = region_def("single_block")
    body = region_def("single_block")
    outputs = var_result_def(TENSOR)

    @property
    def entering(self) -> Sequence[SSAValue]:
        return self.operands

    @property
    def count(self) -> int:
        """The number of carried values."""
        return integer(self.carried)

    def infer(self) -> Sequence[AnyTensorType]:
        if not 0 <= self.count <= len(self.operands):
            raise ValueError(f"carried is {self.count}; expected 0 <= carried <= {len(self.operands)} (the operands)")
        self.check_regions()
        return while_types(self.operands[: self.count], self.yielded(0), self.yielded(1))


def check_condition(value: SSAValue) -> None:
    """Raise ValueError unless a value can be a condition."""
    if (dtype_of(value), shape_of(value)) != ("i1", ()):
        raise ValueError(f"a condition is a 0-d i1, tensor<i1>; got {value.type}")


def if_types(then: Sequence[SSAValue], orelse: Sequence[SSAValue]) -> list[AnyTensorType]:
    """The result types of an `if` whose regions yield these values."""
    types, orelse_types = [type_of(value) for value in then], [type_of(value) for value in orelse]
    if types != orelse_types:
        raise ValueError(f"both regions yield the same types; got {show(types)} and {show(orelse_types)}")
    return types


def while_types(carried: Sequence[SSAValue], cond: Sequence[SSAValue], body: Sequence[SSAValue]) -> list[AnyTensorType]:
    """The result types of a `while` with these initial values, whose regions yield `cond` and `body`."""
    if len(cond) != 1:
        raise ValueError(f"the region 'while' yields one condition; got {len(cond)} values")
    check_condition(cond[0])
    types, yielded = [type_of(value) for value in carried], [type_of(value) for value in body]
    if types != yielded:
        raise ValueError(f"the region 'do' yields the types of the carried values, {show(types)}; got {show(yielded)}")
    return types


def end_of(block: Block, word: str = "region") -> YieldOp:
    """The terminator of a region's block. Raises ValueError when it is missing."""
    if not isinstance(block.last_op, YieldOp):
        raise ValueError(f"the region '{word}' must end in lazytpu.yield")
    return block.last_op


def _parse_region(parser: Parser, word: str, types: Sequence[Attribute]) -> Region:
    parser.parse_keyword(word)
    position = parser.pos
    names = parser.parse_optional_comma_separated_list(
        parser.Delimiter.PAREN, lambda: parser.parse_argument(expect_type=False)
    )
    names = names or []
    if len(names) != len(types):
        parser.raise_error(f"the region '{word}' has {len(names)} arguments; expected {len(types)}", position)
    outer, parser.ssa_values = parser.ssa_values, {}  # a new scope of names, since regions are isolated
    region = parser.parse_region([name.resolve(kind) for name, kind in zip(names, types, strict=True)])
    parser.ssa_values = outer
    return region
