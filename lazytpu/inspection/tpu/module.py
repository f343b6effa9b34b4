"""The StableHLO that was compiled, as far as advice needs it: arguments and results with their names, and products."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

from lazytpu.inspection.tpu.collectives import KINDS
from lazytpu.inspection.tpu.hlo import Line
from lazytpu.inspection.tpu.products import least_flops
from lazytpu.runtime.client import mlir_context
from lazytpu.runtime.mlir import ir, stablehlo
from lazytpu.runtime.signature import ALIAS, DONOR, main_function

_BITS = re.compile(r"(\d+)(?!.*\d)")


@dataclass(frozen=True, slots=True)
class Tensor:
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
class Argument:
    """One argument of `@main`: whether a result may take its memory, and which, if the program says so."""

    name: str | None
    type: Tensor
    overwritten: bool
    alias: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """One result of `@main`, with the line of the op that made it; `line` is None where that is an argument."""

    name: str | None
    type: Tensor
    line: Line | None


@dataclass(frozen=True, slots=True)
class Product:
    """A `dot_general`: `batch` products of [rows, depth] by [depth, columns]. `precision` is that of its operands,
    "DEFAULT", "HIGH" or "HIGHEST"."""

    left: Tensor
    right: Tensor
    batch: int
    rows: int
    depth: int
    columns: int
    precision: str
    line: Line | None

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.batch * self.rows * self.depth * self.columns


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective: its kind as HLO spells it, the bytes of its operands and results, whichever are more, and its
    line, which the compiler drops where it has the collective run beside the core."""

    kind: str
    bytes: int
    line: Line | None


@dataclass(frozen=True, slots=True)
class Module:
    """What `read_module` found."""

    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    products: tuple[Product, ...]
    exchanges: tuple[Exchange, ...] = ()
    least_flops: float = 0.0
    "Operations of products, in all functions, that a compiler cannot do without."


def read_module(text: str | bytes) -> Module:
    """Read the text or bytecode of a StableHLO module. Raises ValueError when it is none, or has no `@main`."""
    with mlir_context():
        try:
            parsed = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise ValueError(f"expected a StableHLO module: {error}") from error
        main = main_function(parsed)
        block = main.regions[0].blocks[0]
        given = [_attributes(main, "arg_attrs", place) for place in range(len(block.arguments))]
        arguments = [
            Argument(_name(each), _tensor(value.type), ALIAS in each or DONOR in each, _alias(each))
            for each, value in zip(given, block.arguments, strict=True)
        ]
        products: list[Product] = []
        exchanges: list[Exchange] = []
        returned: list[Any] = []
        for op in block.operations:
            kind = op.operation.name.removeprefix("stablehlo.").replace("_", "-")
            if op.operation.name == "stablehlo.dot_general":
                products.append(_product(op))
            elif kind in KINDS:
                sizes = [sum(_tensor(each.type).bytes for each in values) for values in (op.operands, op.results)]
                exchanges.append(Exchange(kind, max(sizes), line_of(op.location)))
            elif op.operation.name in ("func.return", "stablehlo.return"):
                returned = list(op.operands)
        results = [
            Result(_name(_attributes(main, "res_attrs", place)), _tensor(value.type), _made_at(value))
            for place, value in enumerate(returned)
        ]
        return Module(tuple(arguments), tuple(results), tuple(products), tuple(exchanges), least_flops(parsed))


def _attributes(main: Any, which: str, place: int) -> dict[str, Any]:
    found = main.operation.attributes
    if which not in found:
        return {}
    return {each.name: each.attr for each in ir.DictAttr(ir.ArrayAttr(found[which])[place])}


def _name(attributes: dict[str, Any]) -> str | None:
    found = attributes.get("lazytpu.name")
    return None if found is None else ir.StringAttr(found).value


def _alias(attributes: dict[str, Any]) -> int | None:
    found = attributes.get(ALIAS)
    return None if found is None else ir.IntegerAttr(found).value


def _tensor(kind: Any) -> Tensor:
    ranked = ir.RankedTensorType(kind)
    return Tensor(str(ranked.element_type), tuple(ranked.shape))


def _made_at(value: Any) -> Line | None:
    return None if isinstance(value.owner, ir.Block) else line_of(value.owner.location)


def line_of(location: Any, backward: bool = False) -> Line | None:
    """The first line of a file that a location names."""
    if isinstance(location, ir.NameLoc):
        return line_of(location.child_loc, backward or location.name_str == "backward")
    if isinstance(location, ir.FileLineColLoc) and location.filename != "-":  # that of the text itself
        return Line(location.filename, location.start_line, backward)
    if isinstance(location, ir.FusedLoc):
        return next((found for part in location.locations if (found := line_of(part, backward))), None)
    if isinstance(location, ir.CallSiteLoc):
        return line_of(location.callee, backward)
    return None


def _product(op: Any) -> Product:
    left, right = _tensor(op.operands[0].type), _tensor(op.operands[1].type)
    dims = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    batch = prod(left.dims[dim] for dim in dims.lhs_batching_dimensions)
    depth = prod(left.dims[dim] for dim in dims.lhs_contracting_dimensions)
    told = str(op.attributes["precision_config"]) if "precision_config" in op.attributes else ""
    precision = "HIGHEST" if "HIGHEST" in told else "HIGH" if "HIGH" in told else "DEFAULT"
    return Product(
        left,
        right,
        batch,
        prod(left.dims) // max(batch * depth, 1),
        depth,
        prod(right.dims) // max(batch * depth, 1),
        precision,
        line_of(op.location),
    )
