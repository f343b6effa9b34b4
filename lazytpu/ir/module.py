"""What a module says of itself as a whole: on how many devices it runs at once, and what it asks of the compiler.

builtin.module attributes {lazytpu.replicas = 4 : i64, lazytpu.compile_options = {xla_some_option = true}} { ... }
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, i64

from lazytpu.ir.base import integer
from lazytpu.ir.template import Param, from_attribute, to_attribute

REPLICAS = "lazytpu.replicas"
"Attribute of a module: on how many devices it runs, each with values of its own; absent for one."

OPTIONS = "lazytpu.compile_options"
"Attribute of a module: options of XLA by name, which whoever compiles it passes on."

Option = bool | int | str


def replicas_of(module: ModuleOp) -> int:
    """On how many devices a module runs at once."""
    found = module.attributes.get(REPLICAS)
    return 1 if found is None else integer(found)


def set_replicas(module: ModuleOp, replicas: int) -> None:
    """Say on how many devices a module runs at once."""
    module.attributes[REPLICAS] = IntegerAttr(replicas, i64)


def options_of(module: ModuleOp) -> dict[str, Option]:
    """The options of XLA that a module asks for."""
    found = module.attributes.get(OPTIONS)
    if not isinstance(found, DictionaryAttr):
        return {}
    return {name: _option(name, from_attribute(each)) for name, each in found.data.items()}


def _option(name: str, value: Param) -> Option:
    if not isinstance(value, Option):
        raise ValueError(f"{OPTIONS}: {name} is {value!r}; an option is a truth value, an integer or a word")
    return value


def add_options(module: ModuleOp, options: Mapping[str, Option]) -> None:
    """Ask for these options of XLA besides those that a module asks for already; of two of a name the new one holds."""
    made = {name: to_attribute(each) for name, each in {**options_of(module), **options}.items()}
    if made:
        module.attributes[OPTIONS] = DictionaryAttr(made)
