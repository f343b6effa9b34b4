"""The `lazytpu` dialect to StableHLO: walks a module and applies the lowering rule of each op."""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lazytpu.ir.location import describe
from lazytpu.ir.module import options_of, replicas_of
from lazytpu.ir.types import type_of
from lazytpu.lowering import (  # noqa: F401  (registers the rules of each family)
    attention,
    collectives,
    constants,
    contractions,
    indexing,
    pointwise,
    random,
    reductions,
    shape,
    sorting,
    template,
)
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.errors import LoweringError
from lazytpu.lowering.locations import to_mlir
from lazytpu.lowering.rules import RULES
from lazytpu.runtime import module_options
from lazytpu.runtime.client import mlir_context
from lazytpu.runtime.mlir import func, ir
from lazytpu.runtime.signature import ALIAS, DONOR, LAYOUT

NAME = "lazytpu.name"
ORDER = "lazytpu.layout"
MAIN = "main"


def emit(module: ModuleOp, *, name: str = "lazytpu", platform: str | None = None, entry: str = MAIN) -> ir.Module:
    """The StableHLO module (in an MLIR context of its own, called `name`) whose `@main` is the function `entry`.

    The private functions that `@main` calls come along; XLA inlines them. Another `entry` is one of these, alone.
    Arguments and results keep their `lazytpu.name`, ops their source lines. An argument with `lazytpu.alias = i` may be
    overwritten by result i, one with `lazytpu.donate` by any result of its size. `lazytpu.layout` of an argument or
    result is how it lies in memory: "{0,1}", from the fastest dimension on, or "auto" where XLA chooses. `platform`,
    such as "tpu", is where the module is to run, when that is not where programs of this process run.

    Raises:
        NotImplementedError: an op has no lowering rule.
        LoweringError: a rule failed, or what it built is not valid StableHLO, or the module is not such a one.
    """
    functions = _functions(module)
    if entry not in functions:
        raise LoweringError(f"expected a module with a function @{entry}; it has {', '.join(functions) or 'none'}")
    with mlir_context(), ir.Location.unknown():
        made = ir.Module.create()
        made.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        replicas, options = replicas_of(module), options_of(module)
        if replicas > 1:
            module_options.set_replicas(made, replicas)
        if options:
            module_options.set_options(made, options)
        emission = Emission(made, platform, replicas)
        called = [each for each in functions if each != MAIN] if entry == MAIN else []
        for each in called:
            emission.symbol(each)  # before a template takes the name
        _emit_function(emission, functions[entry], MAIN)
        for each in called:
            _emit_function(emission, functions[each], each)
        try:
            made.operation.verify()
        except ir.MLIRError as error:
            raise LoweringError(f"lowering {name} gave invalid StableHLO: {error}") from error
        return made


def _functions(module: ModuleOp) -> dict[str, FuncOp]:
    """The functions of a module by name: `@main`, and private ones."""
    found = [op for op in module.ops if isinstance(op, FuncOp)]
    public = [op.sym_name.data for op in found if op.sym_visibility is None or op.sym_visibility.data != "private"]
    if len(found) != len(list(module.ops)) or public != [MAIN]:
        raise LoweringError(
            f"expected a module of a function @main, and private functions; got {[op.name for op in module.ops]}, "
            f"public {public}"
        )
    return {op.sym_name.data: op for op in found}


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
        made = func.FuncOp(
            name, ir.FunctionType.get(inputs, outputs), visibility="public" if name == MAIN else "private"
        )
    if name == MAIN:  # what a call may overwrite is XLA's to decide
        given = [
            {**_argument_attributes(a, results), **_layout_attribute(a, len(kind.shape))}
            for a, kind in zip(arguments, inputs, strict=True)
        ]
        returned = [
            {**_name_attribute(a), **_layout_attribute(a, len(kind.shape))}
            for a, kind in zip(results, outputs, strict=True)
        ]
        made.arg_attrs = ir.ArrayAttr.get(list(map(ir.DictAttr.get, given)))
        made.result_attrs = ir.ArrayAttr.get(list(map(ir.DictAttr.get, returned)))
    entry = made.body.blocks.append(*inputs, arg_locs=[_argument_location(a) for a in arguments])
    values = _Values(zip(block.args, entry.arguments, strict=True))
    with ir.InsertionPoint(entry):
        _emit_block(e, block, values)
        func.ReturnOp([values[v] for v in terminator.arguments])


class _Values(dict[SSAValue, ir.Value]):
    """What the values of a function became."""

    def __missing__(self, value: SSAValue) -> ir.Value:
        made = value.owner.name if isinstance(value.owner, Operation) else "another function"
        raise LoweringError(f"an op uses a value of {made} before it is made, or from where it cannot be seen")


def _emit_block(e: Emission, block: Block, values: _Values) -> None:
    locations: dict[int, ir.Location] = {}
    for op in block.ops:
        if isinstance(op, ReturnOp):
            continue
        # Ops of one source line share one xDSL location.
        location = locations.get(id(op.location))
        if location is None:
            location = locations[id(op.location)] = to_mlir(op.location)
        with location:
            made = _emit_op(e, op, [values[v] for v in op.operands])
        if isinstance(made, ir.Value):
            values[op.results[0]] = made
        else:
            values.update(zip(op.results, made, strict=True))


def _emit_op(e: Emission, op: Operation, operands: Sequence[ir.Value]) -> ir.Value | Sequence[ir.Value]:
    if isinstance(op, CallOp):
        return e.call(op.callee.string_value(), operands, [e.type(type_of(result)) for result in op.results])
    rule = RULES.get(type(op))  # type: ignore[arg-type]
    if rule is None:
        raise NotImplementedError(
            f"{op.name}{_at(op)} has no lowering rule. Add one to the file of its family in "
            f"lazytpu/lowering: a function rule(emission, op, *operands) under @lowers({type(op).__name__})"
        )
    try:
        return rule(e, op, *operands)
    except (ir.MLIRError, ValueError, TypeError, RuntimeError, KeyError) as error:
        raise LoweringError(f"cannot lower {op.name}{_at(op)}: {error}\n{op}") from error


def _at(op: Operation) -> str:
    line = describe(op.location)
    return f" at {line}" if line else ""


def _attributes(found: Attribute | None, count: int) -> list[dict[str, Attribute]]:
    """The attributes of each argument or result."""
    if found is None:
        return [{} for _ in range(count)]
    return [dict(a.data) if isinstance(a, DictionaryAttr) else {} for a in found]  # type: ignore[union-attr]


def _name_attribute(attributes: dict[str, Attribute]) -> dict[str, ir.Attribute]:
    found = attributes.get(NAME)
    return {NAME: ir.StringAttr.get(found.data)} if isinstance(found, StringAttr) else {}


def _layout_attribute(attributes: dict[str, Attribute], rank: int) -> dict[str, ir.Attribute]:
    found = attributes.get(ORDER)
    if found is None:
        return {}
    text = found.data if isinstance(found, StringAttr) else str(found)
    orders = re.fullmatch(r"\{([\d,]*)\}", text)
    if text != "auto" and (orders is None or sorted(map(int, re.findall(r"\d+", text))) != list(range(rank))):
        raise LoweringError(
            f'{ORDER} = {text!r}: expected "auto", or each of the {rank} dimensions from the fastest on, as in '
            f'"{{{",".join(map(str, range(rank)))}}}"'
        )
    return {LAYOUT: ir.StringAttr.get(text)}


def _argument_attributes(
    attributes: dict[str, Attribute], results: Sequence[dict[str, Attribute]]
) -> dict[str, ir.Attribute]:
    made = _name_attribute(attributes)
    alias = attributes.get("lazytpu.alias")
    if isinstance(alias, IntegerAttr):
        if not 0 <= alias.value.data < len(results):
            raise LoweringError(f"lazytpu.alias = {alias.value.data}: @main has {len(results)} results")
        of_result = results[alias.value.data].get(ORDER)
        if attributes.get(ORDER) != of_result:
            raise LoweringError(
                f"an argument and the result in its memory have two layouts: {attributes.get(ORDER)} and {of_result}"
            )
        made[ALIAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), alias.value.data)
    elif "lazytpu.donate" in attributes:
        made[DONOR] = ir.BoolAttr.get(True)
    return made


def _argument_location(attributes: dict[str, Attribute]) -> ir.Location:
    found = attributes.get(NAME)
    return ir.Location.name(found.data) if isinstance(found, StringAttr) else ir.Location.unknown()
