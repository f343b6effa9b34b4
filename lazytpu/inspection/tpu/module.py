"""The compiled StableHLO as far as reports need it: named arguments and results, products, collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lazytpu.inspection.tpu.arrays import Array
from lazytpu.inspection.tpu.collectives import KINDS
from lazytpu.inspection.tpu.hlo import ProgramLine
from lazytpu.inspection.tpu.products import MatrixProduct, inside, least_flops, line_of, product_of, tensor_of
from lazytpu.runtime.xla.client import mlir_context
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.signature import ALIAS, DONOR, main_function

NAME = "lazytpu.name"


@dataclass(frozen=True, slots=True)
class ModuleArgument:
    """An argument of `@main`: whether a result may reuse its memory, and which result, if the program specifies it."""

    name: str | None
    type: Array
    overwritten: bool
    alias: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """A result of `@main` with the line of the op that produces it; `line` is None for an argument."""

    name: str | None
    type: Array
    line: ProgramLine | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective: its kind as in HLO, the bytes of its operands or results (the larger ones), and its line, which the
    compiler drops for asynchronous collectives."""

    kind: str
    bytes: int
    line: ProgramLine | None


@dataclass(frozen=True, slots=True)
class Module:
    """The result of `read_module`. `least_flops` are the operations of products, in all functions, that no compiler can
    avoid."""

    arguments: tuple[ModuleArgument, ...]
    results: tuple[Result, ...]
    products: tuple[MatrixProduct, ...]
    exchanges: tuple[Exchange, ...] = ()
    least_flops: float = 0.0


def read_module(text: str | bytes) -> Module:
    """Read the text or bytecode of a StableHLO module. Raises ValueError if it is invalid, or has no `@main`."""
    with mlir_context():
        try:
            parsed = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise ValueError(f"expected a StableHLO module: {error}") from error
        main = main_function(parsed)
        block = main.regions[0].blocks[0]
        argument_attributes = [_attributes(main, "arg_attrs", place) for place in range(len(block.arguments))]
        arguments = [
            ModuleArgument(
                _value(attributes, NAME, ir.StringAttr),
                tensor_of(value),
                ALIAS in attributes or DONOR in attributes,
                _value(attributes, ALIAS, ir.IntegerAttr),
            )
            for attributes, value in zip(argument_attributes, block.arguments, strict=True)
        ]
        products: list[MatrixProduct] = []
        exchanges: list[Exchange] = []
        returned: list[Any] = []
        for op in inside(main):
            kind = op.operation.name.removeprefix("stablehlo.").replace("_", "-")
            if (product := product_of(op)) is not None:
                products.append(product)
            elif kind in KINDS:
                sizes = [sum(tensor_of(value).bytes for value in values) for values in (op.operands, op.results)]
                exchanges.append(Exchange(kind, max(sizes), line_of(op.location)))
            elif op.operation.name == "func.return":
                returned = list(op.operands)
        results = [
            Result(
                _value(_attributes(main, "res_attrs", place), NAME, ir.StringAttr),
                tensor_of(value),
                None if isinstance(value.owner, ir.Block) else line_of(value.owner.location),
            )
            for place, value in enumerate(returned)
        ]
        return Module(tuple(arguments), tuple(results), tuple(products), tuple(exchanges), least_flops(parsed))


def _attributes(main: Any, which: str, place: int) -> dict[str, Any]:
    attributes = main.operation.attributes
    if which not in attributes:
        return {}
    return {entry.name: entry.attr for entry in ir.DictAttr(ir.ArrayAttr(attributes[which])[place])}


def _value(attributes: dict[str, Any], name: str, kind: Any) -> Any:
    """Return the value of an attribute of this kind; None if it is missing."""
    return kind(attributes[name]).value if name in attributes else None
