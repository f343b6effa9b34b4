"""What this process is set to that changes what a trace is translated to, besides the trace."""

from __future__ import annotations

import sys

import torch

from lazytpu.aten import registry
from lazytpu.options import options
from lazytpu.runtime.cache import programs


def settings() -> list[str]:
    """The settings that change what a trace is translated to."""
    return [
        f"bounds_check {options.bounds_check}",
        f"default dtype {torch.get_default_dtype()}",  # this and the next: torch's decompositions ask
        f"deterministic algorithms {torch.are_deterministic_algorithms_enabled()}",
        f"options of XLA {sorted(programs.OPTIONS.items())}",
    ]


def extended() -> bool:
    """Whether this process has rules or passes from outside lazytpu: what they make of a trace is theirs alone."""
    pipeline = sys.modules.get("lazytpu.passes.pipeline")  # not imported here: it loads xDSL
    passes = {} if pipeline is None else pipeline.PASSES
    return bool(registry.foreign()) or any(make.__module__ != "lazytpu.passes.pipeline" for make in passes.values())
