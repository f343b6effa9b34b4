"""Compile options on a StableHLO module: the number of devices it runs on at once, and options of XLA.

A pass that needs a compiler option for its rewrite writes it on the module; the compiler's callers read it here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lazytpu.runtime.xla.mlir import ir

OPTIONS = "lazytpu.compile_options"
"""The attribute of options by name: booleans, integers and strings."""
REPLICAS = "mhlo.num_replicas"
MEMBERS = "lazytpu.members"
"""The attribute with the process of each replica; absent while it is unknown."""

Option = bool | int | str


def set_options(module: ir.Module, options: Mapping[str, Option]) -> None:
    """Set the options of a module, in its context."""
    attributes = {name: _attribute(option) for name, option in options.items()}
    module.operation.attributes[OPTIONS] = ir.DictAttr.get(attributes)


def add_options(module: ir.Module, options: Mapping[str, Option]) -> None:
    """Add options to those of a module, in its context."""
    if options:
        set_options(module, {**options_of(module), **options})


def options_of(module: ir.Module) -> dict[str, Option]:
    """Return the options of a module."""
    attributes = module.operation.attributes
    if OPTIONS not in attributes:
        return {}
    return {named.name: _option(named.attr) for named in ir.DictAttr(attributes[OPTIONS])}


def set_replicas(module: ir.Module, replicas: int) -> None:
    """Set the number of devices that a module runs on at once, in its context."""
    module.operation.attributes[REPLICAS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), replicas)


def replicas_of(module: ir.Module) -> int:
    """Return the number of devices that a module runs on at once, each with its own values."""
    attributes = module.operation.attributes
    return ir.IntegerAttr(attributes[REPLICAS]).value if REPLICAS in attributes else 1


def set_members(module: ir.Module, members: Sequence[int]) -> None:
    """Set the process of each replica of a module, in its context."""
    module.operation.attributes[MEMBERS] = ir.DenseI64ArrayAttr.get(list(members))


def members_of(module: ir.Module) -> tuple[int, ...]:
    """Return the process of each replica; empty for a module that runs by itself."""
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
