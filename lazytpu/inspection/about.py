"""The origin of a program: the script, its models, the target, and the versions of the libraries."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from lazytpu.version import VERSION


@dataclass(frozen=True, slots=True)
class About:
    """The information about a process that it writes next to each dumped program.

    `script` is the file that runs, empty if there is none. `models` are the classes of the modules whose parameters the
    program takes. `target` is the target of the passes: "cpu", "v6e". Source lines have paths from one of `folders`.
    """

    script: str
    models: tuple[str, ...]
    target: str
    versions: Mapping[str, str]
    folders: tuple[str, ...] = ()

    def text(self) -> str:
        """Return `name: value` lines, as `parse` reads them."""
        fields = {"script": self.script, "models": ", ".join(self.models), "target": self.target}
        fields |= {"folders": os.pathsep.join(self.folders), **self.versions}
        return "\n".join(f"{name}: {value}" for name, value in fields.items())

    @classmethod
    def parse(cls, text: str) -> About:
        """Parse the result of `text`. Missing fields are empty."""
        fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        script, models, target, folders = (fields.pop(name, "") for name in ("script", "models", "target", "folders"))
        listed = tuple(folders.split(os.pathsep)) if folders else ()
        return cls(script, tuple(models.split(", ")) if models else (), target, fields, listed)


def about(models: Sequence[str], target: str) -> About:
    """Return the `About` of this process for a program that takes the parameters of `models`."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    # A line of a file outside of the current folder has the last two parts of its path.
    folders = (os.getcwd(), *([str(Path(script).resolve().parent.parent)] if script else []))
    return About(Path(script).name if script else "", tuple(models), target, _versions(), folders)


@cache
def _versions() -> Mapping[str, str]:
    python = {"python": platform.python_version()}
    return {"lazytpu": VERSION, **{name: metadata.version(name) for name in ("torch", "jax")}, **python}
