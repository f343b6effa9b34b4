"""Emits StableHLO: walks a module of the `lazytpu` dialect and applies the lowering rule of each op."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute

from lazytpu.ir.groups import MeshGroups, common_mesh, lists_of
from lazytpu.ir.module import members_of, options_of, replicas_of
from lazytpu.ir.types import type_of
from lazytpu.lowering import (  # noqa: F401  (registers the rules of each family)
    attention,
    collectives,
    complex_functions,
    constants,
    contractions,
    control,
    error_functions,
    indexing,
    jax_call,
    pointwise,
    random,
    reductions,
    shape,
    sorting,
    template,
)
from lazytpu.lowering.blocks import Values, emit_block
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.errors import LoweringError
from lazytpu.runtime.xla import module_options
from lazytpu.runtime.xla.client import mlir_context
from lazytpu.runtime.xla.mlir import func, ir
from lazytpu.runtime.xla.signature import ALIAS, DONOR, LAYOUT

NAME = "lazytpu.name"
ORDER = "lazytpu.layout"
MAIN = "main"


def emit(module: ModuleOp, *, name: str = "lazytpu", platform: str | None = None, entry: str = MAIN) -> ir.Module:
    """The StableHLO module, named `name` and in an MLIR context of its own, whose `@main` is the function `entry`.

    For `@main`, the private functions that it calls are emitted too, and XLA inlines them; any other `entry` is one of
    these, emitted alone. Arguments and results keep their `lazytpu.name`, ops their source lines. An argument with
    `lazytpu.alias = i` may be overwritten by result i, one with `lazytpu.donate` by any result of its size. The
    `lazytpu.layout` of an argument or result is its layout in memory: "{0,1}", fastest dimension first, or "auto" for
    XLA's choice. `platform`, such as "tpu", is where the module will run, if not on the platform of this process.

    Raises:
        NotImplementedError: an op has no lowering rule.
        LoweringError: the module has no such entry, a rule failed, or it built invalid StableHLO.
    """
    functions = _functions(module)
    if entry not in functions:
        raise LoweringError(f"expected a module with a function @{entry}; it has {', '.join(functions) or 'none'}")
    with mlir_context(), ir.Location.unknown():
        stablehlo = ir.Module.create()
        stablehlo.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        replicas, options = replicas_of(module), options_of(module)
        if replicas > 1:
            module_options.set_replicas(stablehlo, replicas)
        members = members_of(module)
        if members:
            module_options.set_members(stablehlo, members)
        if options:
            module_options.set_options(stablehlo, options)
        emission = Emission(stablehlo, platform, replicas, _mesh(module) if replicas > 1 else None)
        callees = [callee for callee in functions if callee != MAIN] if entry == MAIN else []
        for callee in callees:
            emission.symbol(callee)  # before a template takes the name
        _emit_function(emission, functions[entry], MAIN)
        for callee in callees:
            _emit_function(emission, functions[callee], callee)
        try:
            stablehlo.operation.verify()
        except ir.MLIRError as error:
            raise LoweringError(f"lowering {name} gave invalid StableHLO: {error}") from error
        return stablehlo


def _mesh(module: ModuleOp) -> tuple[int, ...] | None:
    """The mesh along whose axes lie all groups of a module that lie along axes of some mesh; None if there is none."""
    found = [lists_of(op.properties["groups"]) for op in module.walk() if "groups" in op.properties]
    meshes = {groups.mesh for groups in found if isinstance(groups, MeshGroups)}
    return common_mesh(meshes) if meshes else None


def _functions(module: ModuleOp) -> dict[str, FuncOp]:
    """The functions of a module by name: `@main`, and private ones."""
    functions = [op for op in module.ops if isinstance(op, FuncOp)]
    public = [op.sym_name.data for op in functions if op.sym_visibility is None or op.sym_visibility.data != "private"]
    if len(functions) != len(list(module.ops)) or public != [MAIN]:
        raise LoweringError(
            f"expected a module of a function @main and private functions; got {[op.name for op in module.ops]}, "
            f"public {public}"
        )
    return {op.sym_name.data: op for op in functions}


def _emit_function(e: Emission, function: FuncOp, name: str) -> None:
    block = function.body.block
    terminator = block.last_op
    if not isinstance(terminator, ReturnOp):
        raise LoweringError(f"@{function.sym_name.data} must end in func.return")
    arguments = _attributes(function.arg_attrs, len(block.args))
    results = _attributes(function.res_attrs, len(terminator.arguments))
    inputs = [e.type(type_of(a)) for a in block.args]
    outputs = [e.type(type_of(v)) for v in terminator.arguments]
    with ir.InsertionPoint(e.module.body):
        target = func.FuncOp(
            name, ir.FunctionType.get(inputs, outputs), visibility="public" if name == MAIN else "private"
        )
    if name == MAIN:  # XLA decides which arguments a private function may overwrite
        argument_attrs = [
            {**_argument_attributes(a, results), **_layout_attribute(a, len(kind.shape))}
            for a, kind in zip(arguments, inputs, strict=True)
        ]
        result_attrs = [
            {**_name_attribute(a), **_layout_attribute(a, len(kind.shape))}
            for a, kind in zip(results, outputs, strict=True)
        ]
        target.arg_attrs = ir.ArrayAttr.get(list(map(ir.DictAttr.get, argument_attrs)))
        target.result_attrs = ir.ArrayAttr.get(list(map(ir.DictAttr.get, result_attrs)))
    entry = target.body.blocks.append(*inputs, arg_locs=[_argument_location(a) for a in arguments])
    values = Values(zip(block.args, entry.arguments, strict=True))
    with ir.InsertionPoint(entry):
        random.derive_keys(e, block, values)
        emit_block(e, block, values)
        func.ReturnOp([values[v] for v in terminator.arguments])


def _attributes(dictionaries: ArrayAttr[DictionaryAttr] | None, count: int) -> list[dict[str, Attribute]]:
    """The attributes of each argument or result."""
    return [dict(a.data) for a in dictionaries] if dictionaries is not None else [{} for _ in range(count)]


def _name_attribute(attributes: dict[str, Attribute]) -> dict[str, ir.Attribute]:
    name = attributes.get(NAME)
    return {NAME: ir.StringAttr.get(name.data)} if isinstance(name, StringAttr) else {}


def _layout_attribute(attributes: dict[str, Attribute], rank: int) -> dict[str, ir.Attribute]:
    layout = attributes.get(ORDER)
    if layout is None:
        return {}
    text = layout.data if isinstance(layout, StringAttr) else str(layout)
    orders = re.fullmatch(r"\{([\d,]*)\}", text)
    if text != "auto" and (orders is None or sorted(map(int, re.findall(r"\d+", text))) != list(range(rank))):
        raise LoweringError(
            f'{ORDER} = {text!r}: expected "auto", or a permutation of the {rank} dimensions, fastest first, such as '
            f'"{{{",".join(map(str, range(rank)))}}}"'
        )
    return {LAYOUT: ir.StringAttr.get(text)}


def _argument_attributes(
    attributes: dict[str, Attribute], results: Sequence[dict[str, Attribute]]
) -> dict[str, ir.Attribute]:
    lowered = _name_attribute(attributes)
    alias = attributes.get("lazytpu.alias")
    if isinstance(alias, IntegerAttr):
        if not 0 <= alias.value.data < len(results):
            raise LoweringError(f"lazytpu.alias = {alias.value.data}: @main has {len(results)} results")
        result_layout = results[alias.value.data].get(ORDER)
        if attributes.get(ORDER) != result_layout:
            raise LoweringError(
                f"an argument and its alias must have the same layout; got {attributes.get(ORDER)} and {result_layout}"
            )
        lowered[ALIAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), alias.value.data)
    elif "lazytpu.donate" in attributes:
        lowered[DONOR] = ir.BoolAttr.get(True)
    return lowered


def _argument_location(attributes: dict[str, Attribute]) -> ir.Location:
    name = attributes.get(NAME)
    return ir.Location.name(name.data) if isinstance(name, StringAttr) else ir.Location.unknown()
