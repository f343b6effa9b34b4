"""Splicing: copies the functions of a lowered template into the module being emitted, as private functions."""

from __future__ import annotations

from math import prod

from lazytpu.ir.types import LARGEST, TooLarge
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.templates.registry import Instance
from lazytpu.runtime.xla.mlir import func, ir


def splice(e: Emission, instance: Instance) -> str:
    """The symbol of the template's function in the module, which is spliced in on first use."""
    return e.function(instance, instance.name, lambda symbol: _splice(e, instance, symbol))


def _splice(e: Emission, instance: Instance, symbol: str) -> None:
    source = ir.Module.parse(instance.bytecode)
    functions = [op for op in source.body.operations if isinstance(op, func.FuncOp)]
    # All symbols are renamed, including helpers: two templates may both have a @_where.
    names = {
        f.name.value: symbol if f.name.value == "main" else e.symbol(f"{symbol}_{f.name.value}") for f in functions
    }
    for function in functions:
        function.operation.walk(_check_sizes)
        function.operation.walk(lambda op: _rename_references(op, names))
        function.attributes["sym_name"] = ir.StringAttr.get(names[function.name.value])
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        for attribute in ("arg_attrs", "res_attrs"):  # jax's argument names, and layouts that only @main may have
            if attribute in function.attributes:
                del function.attributes[attribute]
        e.module.body.append(function.operation.clone())


def _check_sizes(op: ir.Operation) -> ir.WalkResult:
    """Raise TooLarge for a template with an array that no device can hold."""
    for result in op.results:
        if isinstance(result.type, ir.RankedTensorType) and prod(result.type.shape) > LARGEST:
            raise TooLarge(f"an array of {result.type} is too large for any device")
    return ir.WalkResult.ADVANCE


# Attributes that refer to functions: one in calls and composites, a list in custom calls.
_ONE = ("callee", "decomposition")
_LIST = "called_computations"


def _rename_references(op: ir.Operation, names: dict[str, str]) -> ir.WalkResult:
    for attribute in _ONE:
        if attribute in op.attributes:
            symbol = ir.FlatSymbolRefAttr(op.attributes[attribute]).value
            op.attributes[attribute] = ir.FlatSymbolRefAttr.get(names[symbol])
    if _LIST in op.attributes:
        symbols = [ir.FlatSymbolRefAttr(item).value for item in ir.ArrayAttr(op.attributes[_LIST])]
        op.attributes[_LIST] = ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(names[symbol]) for symbol in symbols])
    return ir.WalkResult.ADVANCE
