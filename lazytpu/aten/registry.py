"""The table of rules: ATen overload name -> what it means in the dialect."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any


@dataclass(frozen=True)
class Rule:
    """How one ATen overload is expressed in the dialect.

    `numbers` are the schema names of arguments whose value is a run-time number (R3); `promotable` of those that are
    part of the program until their value is seen to vary, and run-time numbers from then on: the rule gives the same
    result for both. `random` rules take the keyword `rng=(seed, offset)`, two 0-d ui64 values (R7).
    """

    name: str
    function: Callable[..., Any]
    numbers: frozenset[str]
    random: bool
    promotable: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Facts:
    """What recording needs to know of a rule; see `Rule`."""

    numbers: frozenset[str]
    random: bool
    promotable: frozenset[str] = frozenset()


RULES: dict[str, Rule] = {}


def rule(
    *names: str, numbers: Iterable[str] = (), promotable: Iterable[str] = (), random: bool = False
) -> Callable[[Any], Any]:
    """Register the decorated function as the rule of the ATen overloads `names` ("aten.add.Tensor").

    It gets a Scalar for each argument in `numbers` and `promotable`; the latter's has a `value` while it is static.
    Raises ValueError when an overload has a rule already: one op, one rule.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if not _is_ours(function):
            load()  # so that a second rule of an op is refused here, and not where the first is needed
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has a rule already, in {RULES[name].function.__module__}")
            RULES[name] = Rule(name, function, frozenset(numbers), random, frozenset(promotable))
        return function

    return register


def _is_ours(function: Callable[..., Any]) -> bool:
    while isinstance(function, partial):
        function = function.func
    return function.__module__.startswith("lazytpu.")


_families: list[str] = []
_remembered: dict[str, Facts] = {}


def load() -> dict[str, Rule]:
    """Import every family of this package once, so that all rules are registered; returns the table."""
    if not _families:
        package = importlib.import_module("lazytpu.aten")
        for module in pkgutil.walk_packages(package.__path__, "lazytpu.aten."):
            importlib.import_module(module.name)
            _families.append(module.name)
    return RULES


def remember(table: dict[str, Facts]) -> None:
    """Take `table` for what `load` would find in this package, so that recording alone does not import the rules."""
    _remembered.update(table)


def facts() -> Mapping[str, Facts | Rule]:
    """The facts of all rules, by the op's name. Imports the rules only when nothing was remembered."""
    if _families or not _remembered:
        return load()
    return {**_remembered, **RULES} if RULES else _remembered


def foreign() -> list[str]:
    """The ops whose rules were registered from outside lazytpu."""
    return [name for name, found in RULES.items() if not _is_ours(found.function)]
