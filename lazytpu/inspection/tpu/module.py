"""The compiled StableHLO as far as reports need it: named arguments and results, products, collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        arguments = [
            ModuleArgument(
                _value(attributes, NAME, ir.StringAttr),
                tensor_of(value),
                ALIAS in attributes or DONOR in attributes,
                _value(attributes, ALIAS, ir.IntegerAttr),
            )
            for attributes, value in _attributed(main, "arg_attrs", block.arguments)
        ]
        products: list[MatrixProduct] = []
        exchanges: list[Exchange] = []
        for op in inside(main):
            kind = op.operation.name.removeprefix("stablehlo.").replace("_", "-")
            if (product := product_of(op)) is not None:
                products.append(product)
            elif kind in KINDS:
                sizes = [sum(tensor_of(value).bytes for value in values) for values in (op.operands, op.results)]
                exchanges.append(Exchange(kind, max(sizes), line_of(op.location)))
        *_, returned = block.operations
        results = [
            Result(
                _value(attributes, NAME, ir.StringAttr),
                tensor_of(value),
                None if isinstance(value.owner, ir.Block) else line_of(value.owner.location),
            )
            for attributes, value in _attributed(main, "res_attrs", returned.operands)
        ]
        return Module(tuple(arguments), tuple(results), tuple(products), tuple(exchanges), least_flops(parsed))


def _attributed(main: Any, which: str, values: Sequence[Any]) -> Iterator[tuple[ir.DictAttr, Any]]:
    """Return the arguments or results of a function, each with its attributes."""
    attributes = main.attributes[which] if which in main.attributes else [ir.DictAttr.get({})] * len(values)
    return zip(map(ir.DictAttr, attributes), values, strict=True)


def _value(attributes: ir.DictAttr, name: str, kind: Any) -> Any:
    """Return the value of an attribute of this kind; None if it is missing."""
    return kind(attributes[name]).value if name in attributes else None
