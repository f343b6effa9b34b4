"""How to write a check, and the registry of checks.

    @check(limit=30)
    def donation() -> str:
        \"\"\"A program overwrites the memory of a donated argument.\"\"\"

The function returns a short description of its observation. It raises NotImplementedError if the device lacks the
feature, and any other exception if it is broken. Modules of checks do not import jax at the top, since the reporting
process imports them.
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
"""The families in the order of the report. The first creates the client, which all others need."""
EXTRA = ("templates",)
"Families that only run when named."


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One line of the report: its `name` in a `family`, the fact that it `proves`, and its time limit in seconds.
    `device` says whether it needs the device, `fresh` whether it needs a new process."""

    family: str
    name: str
    proves: str
    limit: float
    run: Callable[[], str]
    device: bool = True
    fresh: bool = False

    @property
    def key(self) -> str:
        """Its name for the child process, such as "memory.donation"."""
        return f"{self.family}.{self.name}"


CHECKS: dict[str, DoctorCheck] = {}


def check(
    *, limit: float = 60, device: bool = True, fresh: bool = False, of: Iterable[str] | None = None
) -> Callable[[Function], Function]:
    """Make the decorated function a check of its module's family. Its docstring states the fact that it proves.

    With `of`, there is one check for each of these names, which is passed to the function. `limit` is in seconds.
    Raises ValueError if a check of that name exists.
    """

    def register(function: Function) -> Function:
        family = function.__module__.rpartition(".")[2]
        proves = " ".join((function.__doc__ or "").split())
        if of is None:
            _add(DoctorCheck(family, function.__name__.replace("_", " "), proves, limit, function, device, fresh))
        for name in of or ():
            _add(DoctorCheck(family, name, proves, limit, _called_with(function, name), device, fresh))
        return function

    return register


def _called_with(function: Callable[..., str], name: str) -> Callable[[], str]:
    return lambda: function(name)


def _add(entry: DoctorCheck) -> None:
    if entry.key in CHECKS:
        raise ValueError(f"there already is a check {entry.key!r}")
    CHECKS[entry.key] = entry


def load(modules: Iterable[str] = ()) -> dict[str, DoctorCheck]:
    """Return all checks by key, in the order of the report, followed by the checks of `modules`. Raises ImportError."""
    present = {info.name for info in pkgutil.iter_modules(importlib.import_module(PACKAGE).__path__)}
    for family in (*FAMILIES, *EXTRA):
        if family in present:
            importlib.import_module(f"{PACKAGE}.{family}")
    for module in modules:
        importlib.import_module(module)
    return CHECKS
