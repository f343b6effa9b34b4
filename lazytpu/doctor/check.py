"""How a check is written, and all that there are.

    @check(limit=30)
    def donation() -> str:
        \"\"\"A program overwrites the memory of an argument that it may have.\"\"\"

The function returns what it saw, in a few words. It raises NotImplementedError for what this device does not have, and
anything else for what is broken. Modules of checks import no jax at their top: the process that reports imports them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., str])

PACKAGE = "lazytpu.doctor.checks"
FAMILIES = ("machine", "transfers", "memory", "cache", "lowerings", "kernels", "training", "estimate")
"In the order of the report. The first makes the client, which all others need."
EXTRA = ("templates",)
"Families that run only when they are named."


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report: its `name` in a `family`, what it `proves`, the seconds it may take, and whether it needs
    the `device`, and a process in which nothing ran before (`fresh`)."""

    family: str
    name: str
    proves: str
    limit: float
    run: Callable[[], str]
    device: bool = True
    fresh: bool = False

    @property
    def key(self) -> str:
        """What the child process calls it: "memory.donation"."""
        return f"{self.family}.{self.name}"


CHECKS: dict[str, Check] = {}


def check(
    *, limit: float = 60, device: bool = True, fresh: bool = False, of: Iterable[str] | None = None
) -> Callable[[Function], Function]:
    """Makes the decorated function a check of its module's family; its docstring says what it proves.

    With `of`, one check for each of these names, which the function is called with. `limit` is in seconds. Raises
    ValueError when there is a check of that name already.
    """

    def register(function: Function) -> Function:
        family = function.__module__.rpartition(".")[2]
        proves = " ".join((function.__doc__ or "").split())
        if of is None:
            _add(Check(family, function.__name__.replace("_", " "), proves, limit, function, device, fresh))
        for name in of or ():
            _add(Check(family, name, proves, limit, _called_with(function, name), device, fresh))
        return function

    return register


def _called_with(function: Callable[..., str], name: str) -> Callable[[], str]:
    return lambda: function(name)


def _add(made: Check) -> None:
    if made.key in CHECKS:
        raise ValueError(f"there is a check {made.key!r} already")
    CHECKS[made.key] = made


def load(modules: Iterable[str] = ()) -> dict[str, Check]:
    """All checks by key, in the order of the report, with those of further `modules` at the end. Raises ImportError."""
    present = {each.name for each in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__)}
    for family in (*FAMILIES, *EXTRA):
        if family in present:
            importlib.import_module(f"{PACKAGE}.{family}")
    for module in modules:
        importlib.import_module(module)
    return CHECKS
