"""Splicing: the functions of a lowered template as private functions of the module being emitted."""

from __future__ import annotations

from lazytpu.lowering.emission import Emission
from lazytpu.lowering.templates.registry import Instance
from lazytpu.runtime.client import func, ir


def splice(e: Emission, instance: Instance) -> str:
    """The symbol of the template's function in the module, spliced in at its first use."""
    return e.function(instance, instance.name, lambda symbol: _splice(e, instance, symbol))


def _splice(e: Emission, instance: Instance, symbol: str) -> None:
    source = ir.Module.parse(instance.bytecode)
    functions = [op for op in source.body.operations if isinstance(op, func.FuncOp)]
    # Every symbol gets a new name, helpers too: two templates may both have a @_where.
    names = {
        f.name.value: symbol if f.name.value == "main" else e.symbol(f"{symbol}_{f.name.value}") for f in functions
    }
    for function in functions:
        function.operation.walk(lambda op: _rename_references(op, names))
        function.attributes["sym_name"] = ir.StringAttr.get(names[function.name.value])
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        for attribute in ("arg_attrs", "res_attrs"):  # names of jax's own, and layouts of the whole module's arguments
            if attribute in function.attributes:
                del function.attributes[attribute]
        e.module.body.append(function.operation.clone())


def _rename_references(op: ir.Operation, names: dict[str, str]) -> ir.WalkResult:
    """Calls, composites and custom calls all name functions; an attribute may hold one symbol or a list of them."""
    for attribute in op.attributes:
        value = op.attributes[attribute]
        if isinstance(value, ir.FlatSymbolRefAttr):
            op.attributes[attribute] = ir.FlatSymbolRefAttr.get(names[value.value])
        elif isinstance(value, ir.ArrayAttr) and any(isinstance(item, ir.FlatSymbolRefAttr) for item in value):
            renamed = [ir.FlatSymbolRefAttr.get(names[ir.FlatSymbolRefAttr(item).value]) for item in value]
            op.attributes[attribute] = ir.ArrayAttr.get(renamed)
    return ir.WalkResult.ADVANCE
