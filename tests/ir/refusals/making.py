"""Construction of invalid ops from text."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i1
from xdsl.ir import Attribute, Block, Region

from lazytpu.ir.control import YieldOp
from lazytpu.ir.dialect import OPS
from lazytpu.ir.types import int_array
from tests.ir.samples import parse_type

Properties = Mapping[str, object]

Refusal = tuple[str, str, str, Properties, str]
"""Name, operand types, result types, properties, part of the message."""


def prop(value: object) -> Attribute:
    match value:
        case Attribute():
            return value
        case bool():
            return IntegerAttr(int(value), i1)
        case int():
            return IntegerAttr(value, 64)
        case str():
            return StringAttr(value)
        case tuple() | list():
            return int_array(value)
    raise TypeError(value)


def region(arguments: str, yields: str | None) -> Region:
    """A region that takes values of these types and yields arguments of it, by number: "f32[2] i1[]", "1 0"."""
    block = Block(arg_types=[parse_type(t) for t in arguments.split()])
    if yields is None:
        block.add_op(OPS["neg"].create(operands=[block.args[0]], result_types=[block.args[0].type]))
    else:
        block.add_op(YieldOp.create(operands=[block.args[int(number)] for number in yields.split()]))
    return Region(block)


def make(name: str, operands: str, results: str, properties: Properties, *regions: tuple[str, str | None]):
    """An op from types such as "f32[2] f32[3]", unverified."""
    types = [parse_type(t) for t in operands.split()]
    return OPS[name].create(
        operands=Block(arg_types=types).args,
        result_types=[parse_type(t) for t in results.split()],
        properties={key: prop(value) for key, value in properties.items()},
        regions=[region(*texts) for texts in regions],
    )
