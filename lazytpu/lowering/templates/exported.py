"""Programs that were exported and loaded again: their StableHLO is spliced in as it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from lazytpu.lowering.templates.registry import template
from lazytpu.runtime.xla.loaded import PROGRAMS
from lazytpu.runtime.xla.portable import jax_export


def _needs(platform: str, program: str) -> Mapping[str, Any]:
    return PROGRAMS[program].options.get(platform, {})


@template("exported", needs=_needs)
def exported(*arrays: Any, program: str) -> Any:
    """Call a loaded program on all of its arguments."""
    loaded = PROGRAMS.get(program)
    if loaded is None:
        raise ValueError(f"program {program[:12]} is not loaded in this process; lazytpu.export.load(folder) loads it")
    arguments = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    results = tuple([jax.ShapeDtypeStruct(shape, dtype) for dtype, shape in loaded.results])

    def of(platform: str) -> Any:
        return jax_export(loaded.artifacts[platform], loaded.name, platform, arguments, {}, results).call

    return jax.lax.platform_dependent(*arrays, **{platform: of(platform) for platform in loaded.artifacts})
