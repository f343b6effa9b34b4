"""What the translation of a trace depends on besides the trace: what its program depends on, and who translates."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata

import jax
import numpy
import torch

from lazytpu.aten import registry
from lazytpu.options import options
from lazytpu.runtime.cache import fingerprint, programs


@cache
def environment() -> Mapping[str, str]:
    """The environment of translation, in words. torch decomposes, jax lowers templates, the others run the passes."""
    return {
        **fingerprint.environment(),
        "lazytpu source": fingerprint.source_digest(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__,
        "jax": jax.__version__,
        "numpy": numpy.__version__,
        **{name: metadata.version(name) for name in ("ml_dtypes", "networkx", "xdsl")},
    }


@cache
def environment_digest() -> str:
    """`environment()` in 64 hexadecimal digits."""
    made = hashlib.sha256()
    for name, value in sorted(environment().items()):
        made.update(f"{len(name)} {name}={len(value)} {value}\n".encode())
    return made.hexdigest()


def settings() -> list[str]:
    """The settings that change what a trace is translated to."""
    return [
        f"bounds_check {options.bounds_check}",
        f"default dtype {torch.get_default_dtype()}",
        f"options of XLA {sorted(programs.OPTIONS.items())}",
    ]


def extended() -> bool:
    """Whether this process has rules or passes from outside lazytpu: what they make of a trace is theirs alone."""
    pipeline = sys.modules.get("lazytpu.passes.pipeline")  # not imported here: it loads xDSL
    passes = {} if pipeline is None else pipeline.PASSES
    return bool(registry.foreign()) or any(make.__module__ != "lazytpu.passes.pipeline" for make in passes.values())
