"""The table of rules, by the name of the ATen overload."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Facts:
    """The facts about a rule that recording needs.

    `numbers` are the schema names of the arguments that are run-time numbers (R3). `specialized` arguments are part of
    the program until their value is seen to vary, and run-time numbers from then on; the rule must compute the same
    either way. `random` rules take the keyword `rng=(seed, offset)`, two 0-d ui64 values (R7).
    """

    numbers: frozenset[str]
    random: bool
    specialized: frozenset[str]


@dataclass(frozen=True)
class Rule(Facts):
    """How one ATen overload is expressed in the dialect. `renamed` maps names of arguments in the schema to the
    function's, where they differ."""

    name: str
    function: Callable[..., Any]
    renamed: Mapping[str, str] = field(default_factory=dict)


RULES: dict[str, Rule] = {}


def rule(
    *names: str,
    numbers: Iterable[str] = (),
    specialized: Iterable[str] = (),
    random: bool = False,
    renamed: Mapping[str, str] | None = None,
) -> Callable[[Any], Any]:
    """Register the decorated function as the rule of the ATen overloads `names` ("aten.add.Tensor").

    The function gets a Scalar for each argument in `numbers` and `specialized`; for a specialized argument it has a
    `value` while it is static. `renamed` maps a torch release's name of an argument to the function's name.
    Raises ValueError if an overload already has a rule: one op, one rule.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if not _is_ours(function):
            load()  # so that a second rule for an op is refused here, not when the first is needed
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} already has a rule, in {RULES[name].function.__module__}")
            RULES[name] = Rule(
                frozenset(numbers), random, frozenset(specialized), name, function, {"from": "from_", **(renamed or {})}
            )
        return function

    return register


def _is_ours(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    return function.__module__.startswith("lazytpu.")


_families: list[str] = []
_remembered: dict[str, Facts] = {}


def load() -> dict[str, Rule]:
    """Import every module of this package once, which registers all rules. Returns the table."""
    if not _families:
        package = importlib.import_module("lazytpu.aten")
        for module in pkgutil.walk_packages(package.__path__, "lazytpu.aten."):
            importlib.import_module(module.name)
            _families.append(module.name)
    return RULES


def remember(table: dict[str, Facts]) -> None:
    """Use `table` as the facts of this package's rules, so that recording does not have to import them."""
    _remembered.update(table)


def facts() -> Mapping[str, Facts]:
    """The facts of all rules, by op name. Imports the rules only if no table was remembered."""
    if _families or not _remembered:
        return load()
    return {**_remembered, **RULES} if RULES else _remembered


def foreign() -> list[str]:
    """The ops whose rules were registered from outside lazytpu."""
    return [name for name, rule_ in RULES.items() if not _is_ours(rule_.function)]
