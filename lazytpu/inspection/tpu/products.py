"""The matrix products of a StableHLO module, and a lower bound for their work, which any compiler's report must reach.

A compiler drops unused results, merges equal expressions, and picks the branch of a constant condition. It turns some
products into sums: products of vectors, of operands that are constant along a dimension, and products used only in part
or as a sum. None of these count. The body of a loop counts once. Kernels count by their own estimate.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from lazytpu.inspection.tpu.arrays import Array
from lazytpu.inspection.tpu.hlo import KERNEL, ProgramLine
from lazytpu.inspection.tpu.windows import covered
from lazytpu.ir.scope import OUTSIDE, Scope, scope_of
from lazytpu.runtime.xla.mlir import ir, stablehlo

_SPREAD = frozenset(("broadcast_in_dim", "iota", "constant"))
"Ops whose result has less information than its size: a product with it may become a sum."
_PARTS = frozenset(("slice", "dynamic_slice", "gather", "reduce", "reduce_window"))
"Ops that need only a part, or a sum, of their operand."


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A `dot_general`: `batch` products of [rows, depth] by [depth, columns]. A convolution is one with a row for each
    position, and its input channels as depth; `batch` are its groups. `precision` is "DEFAULT", "HIGH" or "HIGHEST"."""

    left: Array
    right: Array
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


def inside(op: Any) -> Iterator[Any]:
    """Yield all ops in the regions of an op."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from inside(inner)


def tensor_of(value: Any) -> Array:
    """Return the type of a value."""
    ranked = ir.RankedTensorType(value.type)
    return Array(str(ranked.element_type), tuple(ranked.shape))


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


def product_of(op: Any) -> MatrixProduct | None:
    """Return a `dot_general` or a convolution; None for other ops."""
    if op.operation.name not in ("stablehlo.dot_general", "stablehlo.convolution"):
        return None
    left, right, result = (tensor_of(value) for value in (*op.operands, op.results[0]))
    if op.operation.name == "stablehlo.dot_general":
        dims = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        batch = prod(left.dims[dim] for dim in dims.lhs_batching_dimensions)
        depth = prod(left.dims[dim] for dim in dims.lhs_contracting_dimensions)
        rows, columns = (prod(side.dims) // max(batch * depth, 1) for side in (left, right))
    else:
        numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
        groups = (ir.IntegerAttr(op.attributes[name]).value for name in ("feature_group_count", "batch_group_count"))
        batch, features = prod(groups), result.dims[numbers.output_feature_dimension]
        depth = right.dims[numbers.kernel_input_feature_dimension]
        rows, columns = prod(result.dims) // max(features, 1), features // batch
    config = str(op.attributes["precision_config"]) if "precision_config" in op.attributes else ""
    precision = "HIGHEST" if "HIGHEST" in config else "HIGH" if "HIGH" in config else "DEFAULT"
    return MatrixProduct(left, right, batch, rows, depth, columns, precision, line_of(op.location))


def least_flops(module: Any) -> float:
    """Return the operations (multiplications and additions) of the products in `@main` that no compiler can avoid."""
    functions = {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    counter = _Counter(functions)
    return counter.of_block(functions["main"].regions[0].blocks[0], None, {}, [])


class _Counter:
    def __init__(self, functions: dict[str, Any]):
        self.functions = functions
        self.numbers: dict[Hashable, int] = {}  # expression -> number
        self.fresh = itertools.count()

    def of_block(
        self, block: Any, needed: Sequence[bool] | None, outer: dict[Any, Hashable], arguments: Sequence[Hashable]
    ) -> float:
        """Return the operations of a block whose arguments have the value numbers `arguments`. `needed` selects the
        needed results; None means all."""
        ops = list(block.operations)
        live, numbers = _live(ops, needed), dict(outer)
        numbers.update(zip(block.arguments, itertools.chain(arguments, self.fresh), strict=False))
        total, seen = 0.0, set[int]()
        for op in ops:
            if not op.results:
                continue
            number = self._number(op, numbers)
            numbers.update((result, (number, place)) for place, result in enumerate(op.results))
            if op in live and number not in seen:
                seen.add(number)
                total += self._of_op(op, numbers, live)
        return total

    def _number(self, op: Any, numbers: dict[Any, Hashable]) -> int:
        if op.regions or op.operation.name == "stablehlo.constant":
            return next(self.fresh)
        attributes = tuple(sorted((key, str(value)) for key, value in op.attributes.items()))
        key = (op.operation.name, tuple(numbers[operand] for operand in op.operands), attributes)
        return self.numbers.setdefault(key, next(self.fresh))

    def _of_op(self, op: Any, numbers: dict[Any, Hashable], live: set[Any]) -> float:
        name = op.operation.name.removeprefix("stablehlo.")
        if name in ("func.call", "composite"):
            attribute = "callee" if name == "func.call" else "decomposition"
            called = self.functions[ir.FlatSymbolRefAttr(op.attributes[attribute]).value].regions[0].blocks[0]
            needed = [any(_needed(use, live) for use in result.uses) for result in op.results]
            return self.of_block(called, needed, {}, [numbers[operand] for operand in op.operands])
        if name in ("case", "if"):
            return min(self.of_block(region.blocks[0], None, numbers, []) for region in self._chosen(op))
        if name == "while":
            return sum(self.of_block(region.blocks[0], None, numbers, []) for region in op.regions)
        if name == "custom_call":
            return _of_kernel(op)
        product = product_of(op)
        if product is None or min(product.rows, product.depth, product.columns) <= 1 or any(map(_spread, op.operands)):
            return 0.0
        users = [use.owner.name.removeprefix("stablehlo.") for use in op.results[0].uses]
        if users and all(user in _PARTS for user in users):
            return 0.0
        return product.flops if name == "dot_general" else _of_convolution(op, product)

    def _chosen(self, op: Any) -> list[Any]:
        """Return the branches that a compiler may take."""
        index, regions = op.operands[0].owner, list(op.regions)
        if (
            not isinstance(index, ir.Block)
            and index.name == "stablehlo.constant"
            and op.operation.name.endswith("case")
        ):
            at = int(ir.DenseIntElementsAttr(index.attributes["value"])[0])
            return [regions[at if 0 <= at < len(regions) else -1]]
        return regions


def _needed(use: Any, live: set[Any]) -> bool:
    return use.owner in live or not use.owner.results


def _live(ops: Sequence[Any], needed: Sequence[bool] | None) -> set[Any]:
    """Return the ops of a block that its results need, or that have side effects."""
    live: set[Any] = set()
    needed_values = {value for place, value in enumerate(ops[-1].operands) if needed is None or needed[place]}
    for op in reversed(ops[:-1]):
        if any(result in needed_values for result in op.results) or not op.results or _acts(op):
            live.add(op)
            needed_values.update(op.operands, *(inner.operands for inner in inside(op)))
    return live


def _acts(op: Any) -> bool:
    return "has_side_effect" in op.attributes and ir.BoolAttr(op.attributes["has_side_effect"]).value


def _spread(value: Any) -> bool:
    """Return whether a value is a broadcast of a smaller one, up to pointwise ops and the order of elements."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return False
    name = owner.name.removeprefix("stablehlo.")
    if name in _SPREAD:
        return True
    if owner.regions or len(owner.results) != 1 or name in ("dot_general", "convolution"):
        return False
    size = prod(tensor_of(value).dims)
    same = [operand for operand in owner.operands if prod(tensor_of(operand).dims) == size]
    return bool(same) and all(map(_spread, same))


def _of_kernel(op: Any) -> float:
    if ir.StringAttr(op.attributes["call_target_name"]).value != KERNEL:
        return 0.0
    config = json.loads(ir.StringAttr(op.attributes["backend_config"]).value)
    return float((config.get("custom_call_config", {}).get("cost_estimate") or {}).get("flops", 0))


def _of_convolution(op: Any, product: MatrixProduct) -> float:
    """Return the operations on elements, without those on padding and between dilated elements."""
    if product.batch > 1:
        return 0.0  # the compiler's work for groups depends on them
    result = tensor_of(op.results[0]).dims
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    count = len(numbers.input_spatial_dimensions)
    strides, bases, spreads = (_listed(op, name, count) for name in ("window_strides", "lhs_dilation", "rhs_dilation"))
    padding = ir.DenseIntElementsAttr(op.attributes["padding"]) if "padding" in op.attributes else [0] * 2 * count
    places = prod(
        covered(
            product.right.dims[numbers.kernel_spatial_dimensions[at]], strides[at], int(padding[2 * at]), spreads[at],
            bases[at], product.left.dims[numbers.input_spatial_dimensions[at]],
            result[numbers.output_spatial_dimensions[at]],
        )
        for at in range(count)
    )  # fmt: skip
    return 2.0 * result[numbers.output_batch_dimension] * product.columns * product.depth * places


def _listed(op: Any, name: str, count: int) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else [1] * count
