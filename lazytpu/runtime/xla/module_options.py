"""What a StableHLO module says of how it is compiled: on how many devices at once, and with which options of XLA.

A pass that needs an option of the compiler for what it made writes it on the module; whoever compiles reads it here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lazytpu.runtime.xla.mlir import ir

OPTIONS = "lazytpu.compile_options"
"The attribute that holds options by name: truth values, integers and words."
REPLICAS = "mhlo.num_replicas"
MEMBERS = "lazytpu.members"
"The attribute that says in which process each replica is; absent where that is not known yet."

Option = bool | int | str


def set_options(module: ir.Module, options: Mapping[str, Option]) -> None:
    """Write options on a module, in its context."""
    module.operation.attributes[OPTIONS] = ir.DictAttr.get({name: _attribute(each) for name, each in options.items()})


def add_options(module: ir.Module, options: Mapping[str, Option]) -> None:
    """Write options beside those that a module has, in its context."""
    if options:
        set_options(module, {**options_of(module), **options})


def options_of(module: ir.Module) -> dict[str, Option]:
    """The options that a module asks for."""
    attributes = module.operation.attributes
    if OPTIONS not in attributes:
        return {}
    return {each.name: _option(each.attr) for each in ir.DictAttr(attributes[OPTIONS])}


def set_replicas(module: ir.Module, replicas: int) -> None:
    """Say on how many devices a module runs at once, in its context."""
    module.operation.attributes[REPLICAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), replicas)


def replicas_of(module: ir.Module) -> int:
    """On how many devices a module runs at once, each with values of its own."""
    attributes = module.operation.attributes
    return ir.IntegerAttr(attributes[REPLICAS]).value if REPLICAS in attributes else 1


def set_members(module: ir.Module, members: Sequence[int]) -> None:
    """Say in which process each replica of a module is, in its context."""
    module.operation.attributes[MEMBERS] = ir.DenseI64ArrayAttr.get(list(members))


def members_of(module: ir.Module) -> tuple[int, ...]:
    """The process of each replica; empty for a module that runs by itself."""
    attributes = module.operation.attributes
    return tuple(ir.DenseI64ArrayAttr(attributes[MEMBERS])) if MEMBERS in attributes else ()


def _attribute(option: Option) -> ir.Attribute:
    if isinstance(option, bool):
        return ir.BoolAttr.get(option)
    if isinstance(option, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), option)
    return ir.StringAttr.get(option)


def _option(attribute: ir.Attribute) -> Option:
    for kind in (ir.BoolAttr, ir.IntegerAttr, ir.StringAttr):
        if isinstance(attribute, kind):
            return kind(attribute).value
    raise ValueError(f"{OPTIONS}: expected truth values, integers and words, got {attribute}")
