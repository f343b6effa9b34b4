"""The settings of this process that change what a trace is translated to. Those that decide about a single op are in
its record."""

from __future__ import annotations

from lazytpu.aten import registry
from lazytpu.engine.programs.target import target
from lazytpu.options import options
from lazytpu.passes.registry import for_target, foreign
from lazytpu.runtime.cache import programs


def settings() -> list[str]:
    """The settings that change what a trace is translated to."""
    return [
        f"bounds_check {options.bounds_check}",
        f"target {target()}",
        f"memory limit {options.memory_limit}",
        f"passes {for_target(target())}",
        f"options of XLA {sorted(programs.OPTIONS.items())}",
    ]


def extended() -> bool:
    """Whether rules or passes from outside lazytpu contribute to what a trace is translated to: the index does not know
    their source, so it cannot say when they change."""
    return bool(registry.foreign()) or bool(foreign(target()))
