"""Attributes of a module as a whole: the number of devices that it runs on, and options of the compiler.

builtin.module attributes {lazytpu.replicas = 4 : i64, lazytpu.compile_options = {xla_some_option = true}} { ... }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, i64

from lazytpu.ir.base import integer
from lazytpu.ir.template import Param, from_attribute, to_attribute
from lazytpu.ir.types import int_array, ints

REPLICAS = "lazytpu.replicas"
"""Attribute of a module: the number of devices that it runs on, each with its own values; absent for one."""

MEMBERS = "lazytpu.members"
"""Attribute of a module: the process that each of its devices belongs to; absent while it is unknown."""

OPTIONS = "lazytpu.compile_options"
"Attribute of a module: options by name, which are passed to XLA when it is compiled."

Option = bool | int | str


def replicas_of(module: ModuleOp) -> int:
    """The number of devices that a module runs on."""
    replicas = module.attributes.get(REPLICAS)
    return 1 if replicas is None else integer(replicas)


def set_replicas(module: ModuleOp, replicas: int) -> None:
    """Set the number of devices that a module runs on."""
    module.attributes[REPLICAS] = IntegerAttr(replicas, i64)


def members_of(module: ModuleOp) -> tuple[int, ...]:
    """Return the process that each device of a module belongs to; empty while it is unknown."""
    members = module.attributes.get(MEMBERS)
    return () if members is None else ints(members)


def set_members(module: ModuleOp, members: Sequence[int]) -> None:
    """Set the processes that run a module together, each on one device."""
    set_replicas(module, len(members))
    module.attributes[MEMBERS] = int_array(members)


def options_of(module: ModuleOp) -> dict[str, Option]:
    """The options of XLA that a module sets."""
    options = module.attributes.get(OPTIONS)
    if not isinstance(options, DictionaryAttr):
        return {}
    return {name: _option(name, from_attribute(value)) for name, value in options.data.items()}


def _option(name: str, value: Param) -> Option:
    if not isinstance(value, Option):
        raise ValueError(f"{OPTIONS}: {name} is {value!r}; an option must be a boolean, an integer or a string")
    return value


def add_options(module: ModuleOp, options: Mapping[str, Option]) -> None:
    """Set options of XLA in addition to those that a module already sets; new values override old ones."""
    merged = {name: to_attribute(value) for name, value in {**options_of(module), **options}.items()}
    if merged:
        module.attributes[OPTIONS] = DictionaryAttr(merged)
