"""The `lazytpu` dialect to StableHLO: walks a module and applies the lowering rule of each op."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lazytpu.ir.location import describe
from lazytpu.ir.types import type_of
from lazytpu.lowering import (  # noqa: F401  (registers the rules of each family)
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
from lazytpu.runtime.client import func, ir, mlir_context
from lazytpu.runtime.signature import ALIAS, DONOR

NAME = "lazytpu.name"


def emit(module: ModuleOp, *, name: str = "lazytpu") -> ir.Module:
    """The StableHLO module (in an MLIR context of its own, called `name`) of a module whose one function is `@main`.

    Arguments and results keep their `lazytpu.name`, ops their source lines. An argument with `lazytpu.alias = i` may be
    overwritten by result i, one with `lazytpu.donate` by any result of its size.

    Raises:
        NotImplementedError: an op has no lowering rule.
        LoweringError: a rule failed, or what it built is not valid StableHLO.
    """
    main = _main(module)
    with mlir_context(), ir.Location.unknown():
        made = ir.Module.create()
        made.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        _emit_function(Emission(made), main)
        try:
            made.operation.verify()
        except ir.MLIRError as error:
            raise LoweringError(f"lowering {name} gave invalid StableHLO: {error}") from error
        return made


def _main(module: ModuleOp) -> FuncOp:
    found = [op for op in module.ops if isinstance(op, FuncOp)]
    if len(found) != 1 or len(list(module.ops)) != 1 or found[0].sym_name.data != "main":
        raise LoweringError(f"expected a module of one function @main; got {[op.name for op in module.ops]}")
    return found[0]


def _emit_function(e: Emission, main: FuncOp) -> None:
    block = main.body.block
    terminator = block.last_op
    if not isinstance(terminator, ReturnOp):
        raise LoweringError("@main must end in func.return")
    arguments = _attributes(main.arg_attrs, len(block.args))
    results = _attributes(main.res_attrs, len(terminator.arguments))
    inputs = [e.type(type_of(a)) for a in block.args]
    outputs = [e.type(type_of(v)) for v in terminator.arguments]
    with ir.InsertionPoint(e.module.body):
        function = func.FuncOp("main", ir.FunctionType.get(inputs, outputs), visibility="public")
    function.arg_attrs = ir.ArrayAttr.get([_argument_attributes(a, len(outputs)) for a in arguments])
    function.result_attrs = ir.ArrayAttr.get([ir.DictAttr.get(_name_attribute(a)) for a in results])
    entry = function.body.blocks.append(*inputs, arg_locs=[_argument_location(a) for a in arguments])
    values: dict[SSAValue, ir.Value] = dict(zip(block.args, entry.arguments, strict=True))
    with ir.InsertionPoint(entry):
        _emit_block(e, block, values)
        func.ReturnOp([values[v] for v in terminator.arguments])


def _emit_block(e: Emission, block: Block, values: dict[SSAValue, ir.Value]) -> None:
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


def _argument_attributes(attributes: dict[str, Attribute], results: int) -> ir.DictAttr:
    made = _name_attribute(attributes)
    alias = attributes.get("lazytpu.alias")
    if isinstance(alias, IntegerAttr):
        if not 0 <= alias.value.data < results:
            raise LoweringError(f"lazytpu.alias = {alias.value.data}: @main has {results} results")
        made[ALIAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), alias.value.data)
    elif "lazytpu.donate" in attributes:
        made[DONOR] = ir.BoolAttr.get(True)
    return ir.DictAttr.get(made)


def _argument_location(attributes: dict[str, Attribute]) -> ir.Location:
    found = attributes.get(NAME)
    return ir.Location.name(found.data) if isinstance(found, StringAttr) else ir.Location.unknown()
