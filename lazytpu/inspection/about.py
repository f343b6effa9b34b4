"""Where a program comes from: the script, its models, what the passes made it for, and whose versions."""

from __future__ import annotations

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
    """What a process says of itself beside each program that it dumps.

    `script` is the file that runs, empty where there is none; `models` the classes of the modules whose parameters the
    program takes; `target` what the passes made it for: "cpu", "v6e".
    """

    script: str
    models: tuple[str, ...]
    target: str
    versions: Mapping[str, str]

    def text(self) -> str:
        """`name: value` lines, as `parse` reads them."""
        known = {"script": self.script, "models": ", ".join(self.models), "target": self.target, **self.versions}
        return "\n".join(f"{name}: {value}" for name, value in known.items())

    @classmethod
    def parse(cls, text: str) -> About:
        """What such lines say. Those that are missing are empty."""
        known = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        script, models, target = (known.pop(name, "") for name in ("script", "models", "target"))
        return cls(script, tuple(models.split(", ")) if models else (), target, known)


def about(models: Sequence[str], target: str) -> About:
    """What this process says of a program that takes the parameters of `models`."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return About(Path(script).name if script else "", tuple(models), target, _versions())


@cache
def _versions() -> Mapping[str, str]:
    python = {"python": platform.python_version()}
    return {"lazytpu": VERSION, **{name: metadata.version(name) for name in ("torch", "jax")}, **python}
