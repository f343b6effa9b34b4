"""The settings of this process that affect the translation of a trace. A setting that concerns a single op is in its
record."""

from __future__ import annotations

from lazytpu.aten import registry
from lazytpu.engine.programs.target import target
from lazytpu.options import options
from lazytpu.passes.registry import for_target, foreign
from lazytpu.runtime.cache import programs


def settings() -> list[str]:
    """Return the settings that affect the translation of a trace."""
    return [
        f"bounds_check {options.bounds_check}",
        f"target {target()}",
        f"memory limit {options.memory_limit}",
        f"passes {for_target(target())}",
        f"options of XLA {sorted(programs.OPTIONS.items())}",
    ]


def extended() -> bool:
    """Return whether rules or passes from outside lazytpu affect the translation of traces. The index does not track
    their source, so it cannot detect changes."""
    return bool(registry.foreign()) or bool(foreign(target()))
