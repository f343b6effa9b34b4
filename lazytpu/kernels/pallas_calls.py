"""Pallas kernels, adapted to the platform that they are lowered for: Mosaic on a TPU, and the interpreter on a CPU.

The user writes `pl.pallas_call` without `interpret=`. A kernel with `interpret=True` is interpreted everywhere. On a
TPU a kernel without a `cost_estimate` gets one: the compiler schedules by it, and the cost report reads its time from
it.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from jax.extend import core

from lazytpu.kernels.jaxprs import PALLAS_CALL, equations, rewritten
from lazytpu.runtime.xla.jax_private import kernel_cost

WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def for_platform(closed: Any, platform: str) -> Any:
    """Return a traced function adapted to a platform."""
    if platform == "cpu":
        return rewritten(closed, lambda call: {"interpret": call.params["interpret"] or True})
    return rewritten(closed, _estimate) if platform == "tpu" else closed


def is_wide(closed: Any) -> bool:
    """Whether a kernel for Mosaic has 64-bit operands or computes with 64-bit numbers, which a TPU lacks."""
    calls = [e for e in equations(closed.jaxpr) if e.primitive.name == PALLAS_CALL and not e.params["interpret"]]
    return any(_has_wide_values(call) for call in calls)


def _has_wide_values(call: Any) -> bool:
    maps = [mapping.index_map_jaxpr for mapping in call.params["grid_mapping"].block_mappings]
    inner_avals = [v.aval for e in equations(call.params["jaxpr"]) for v in e.outvars]
    avals = [*(v.aval for v in call.invars), *inner_avals, *(a for index_map in maps for a in index_map.out_avals)]
    return any(getattr(a, "dtype", None) in WIDE for a in avals)


def _estimate(call: Any) -> dict[str, Any]:
    params = call.params
    if params.get("cost_estimate") is not None or params["interpret"]:
        return {}
    return {"cost_estimate": kernel_cost(params["jaxpr"], _steps(params["grid_mapping"].grid), _bytes(call))}


def _steps(grid: tuple[Any, ...]) -> int:
    """Return the number of runs of the kernel's body; a bound known only at run time counts as 1."""
    return prod(n if isinstance(n, int) else 1 for n in grid)


def _bytes(call: Any) -> int:
    """Return the bytes of the arrays that a call reads and writes, each once: blocks that stay in the chip's memory are
    not fetched again."""
    arrays = [v.aval for v in (*call.invars, *call.outvars) if not isinstance(v, core.Literal)]
    return sum(prod(a.shape) * a.dtype.itemsize for a in arrays)
