"""What this process is set to that changes what a trace is translated to, besides the trace, whose records say what
they were made under."""

from __future__ import annotations

from lazytpu.aten import registry
from lazytpu.engine.compiling.target import target
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
    """Whether rules or passes from outside lazytpu have a say in what a trace is made into: what they make is theirs
    alone."""
    return bool(registry.foreign()) or bool(foreign(target()))
