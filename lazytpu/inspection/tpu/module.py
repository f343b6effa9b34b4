"""The compiled StableHLO as far as reports need it: named arguments and results, products, collectives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from lazytpu.inspection.tpu.collectives import KINDS
from lazytpu.inspection.tpu.hlo import ProgramLine
from lazytpu.inspection.tpu.products import least_flops
from lazytpu.ir.scope import OUTSIDE, Scope, scope_of
from lazytpu.runtime.xla.client import mlir_context
from lazytpu.runtime.xla.mlir import ir, stablehlo
from lazytpu.runtime.xla.signature import ALIAS, DONOR, main_function

BRANCHES = frozenset(("stablehlo.if", "stablehlo.case", "stablehlo.while"))
_BITS = re.compile(r"(\d+)(?!.*\d)")


@dataclass(frozen=True, slots=True)
class ModuleTensor:
    """An element type by its MLIR name, and dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        bits = {"i1": 8}.get(self.dtype) or int((_BITS.search(self.dtype.split("E")[0]) or ["32", "32"])[1])
        return prod(self.dims) * max(bits, 8) // 8 * (2 if self.dtype.startswith("complex") else 1)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class ModuleArgument:
    """An argument of `@main`: whether a result may reuse its memory, and which result, if the program specifies it."""

    name: str | None
    type: ModuleTensor
    overwritten: bool
    alias: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """A result of `@main` with the line of the op that produces it; `line` is None for an argument."""

    name: str | None
    type: ModuleTensor
    line: ProgramLine | None


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A `dot_general`: `batch` products of [rows, depth] by [depth, columns]. A convolution is one with a row for each
    position, and its input channels as depth; `batch` are its groups. `precision` is "DEFAULT", "HIGH" or "HIGHEST"."""

    left: ModuleTensor
    right: ModuleTensor
    batch: int
    rows: int
    depth: int
    columns: int
    precision: str
    line: ProgramLine | None

    @property
    def flops(self) -> float:
        """The number of multiplications and additions."""
        return 2.0 * self.batch * self.rows * self.depth * self.columns


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective: its kind as in HLO, the bytes of its operands or results (the larger ones), and its line, which the
    compiler drops for asynchronous collectives."""

    kind: str
    bytes: int
    line: ProgramLine | None


@dataclass(frozen=True, slots=True)
class Module:
    """The result of `read_module`."""

    arguments: tuple[ModuleArgument, ...]
    results: tuple[Result, ...]
    products: tuple[MatrixProduct, ...]
    exchanges: tuple[Exchange, ...] = ()
    least_flops: float = 0.0
    "Operations of products, in all functions, that a compiler cannot avoid."


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
                _name(attributes), _tensor(value.type), ALIAS in attributes or DONOR in attributes, _alias(attributes)
            )
            for attributes, value in zip(argument_attributes, block.arguments, strict=True)
        ]
        products: list[MatrixProduct] = []
        exchanges: list[Exchange] = []
        returned: list[Any] = []
        for op in _within(block):
            kind = op.operation.name.removeprefix("stablehlo.").replace("_", "-")
            if op.operation.name == "stablehlo.dot_general":
                products.append(_product(op))
            elif op.operation.name == "stablehlo.convolution":
                products.append(_convolution(op))
            elif kind in KINDS:
                sizes = [
                    sum(_tensor(attributes.type).bytes for attributes in values) for values in (op.operands, op.results)
                ]
                exchanges.append(Exchange(kind, max(sizes), line_of(op.location)))
            elif op.operation.name == "func.return":
                returned = list(op.operands)
        results = [
            Result(_name(_attributes(main, "res_attrs", place)), _tensor(value.type), _made_at(value))
            for place, value in enumerate(returned)
        ]
        return Module(tuple(arguments), tuple(results), tuple(products), tuple(exchanges), least_flops(parsed))


def _within(block: Any) -> Iterator[Any]:
    """Yield the ops of a block, including nested branches and loops."""
    for op in block.operations:
        yield op
        if op.operation.name in BRANCHES:
            for region in op.regions:
                for inner in region.blocks:
                    yield from _within(inner)


def _attributes(main: Any, which: str, place: int) -> dict[str, Any]:
    attributes = main.operation.attributes
    if which not in attributes:
        return {}
    return {entry.name: entry.attr for entry in ir.DictAttr(ir.ArrayAttr(attributes[which])[place])}


def _name(attributes: dict[str, Any]) -> str | None:
    name = attributes.get("lazytpu.name")
    return None if name is None else ir.StringAttr(name).value


def _alias(attributes: dict[str, Any]) -> int | None:
    alias = attributes.get(ALIAS)
    return None if alias is None else ir.IntegerAttr(alias).value


def _tensor(kind: Any) -> ModuleTensor:
    ranked = ir.RankedTensorType(kind)
    return ModuleTensor(str(ranked.element_type), tuple(ranked.shape))


def _made_at(value: Any) -> ProgramLine | None:
    return None if isinstance(value.owner, ir.Block) else line_of(value.owner.location)


def line_of(location: Any, scope: Scope = OUTSIDE) -> ProgramLine | None:
    """Return the first source line in a location, or None."""
    if isinstance(location, ir.NameLoc):
        named = scope_of(location.name_str)
        return line_of(location.child_loc, named if any(named) else scope)
    if isinstance(location, ir.FileLineColLoc) and location.filename != "-":  # "-" is the module's own text
        return ProgramLine(location.filename, location.start_line, *scope)
    if isinstance(location, ir.FusedLoc):
        return next((line for nested in location.locations if (line := line_of(nested, scope))), None)
    if isinstance(location, ir.CallSiteLoc):
        return line_of(location.callee, scope)
    return None


def _product(op: Any) -> MatrixProduct:
    left, right = _tensor(op.operands[0].type), _tensor(op.operands[1].type)
    dims = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    batch = prod(left.dims[dim] for dim in dims.lhs_batching_dimensions)
    depth = prod(left.dims[dim] for dim in dims.lhs_contracting_dimensions)
    return MatrixProduct(
        left,
        right,
        batch,
        prod(left.dims) // max(batch * depth, 1),
        depth,
        prod(right.dims) // max(batch * depth, 1),
        _precision(op),
        line_of(op.location),
    )


def _convolution(op: Any) -> MatrixProduct:
    left, right, result = _tensor(op.operands[0].type), _tensor(op.operands[1].type), _tensor(op.results[0].type)
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    groups = [ir.IntegerAttr(op.attributes[name]).value for name in ("feature_group_count", "batch_group_count")]
    batch, features = prod(groups), result.dims[numbers.output_feature_dimension]
    depth = right.dims[numbers.kernel_input_feature_dimension]
    rows = prod(result.dims) // max(features, 1)
    return MatrixProduct(left, right, batch, rows, depth, features // batch, _precision(op), line_of(op.location))


def _precision(op: Any) -> str:
    config = str(op.attributes["precision_config"]) if "precision_config" in op.attributes else ""
    return "HIGHEST" if "HIGHEST" in config else "HIGH" if "HIGH" in config else "DEFAULT"
