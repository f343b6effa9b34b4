"""Pallas kernels, adapted to the platform that they are lowered for: Mosaic on a TPU, and the interpreter on a CPU.

The user writes `pl.pallas_call` or `pl.kernel` without `interpret=`. A kernel with `interpret=True` is interpreted
everywhere. On a TPU a kernel without a `cost_estimate` gets one: the compiler schedules by it, and the cost report
reads its time from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
import numpy as np
from jax.extend import core

from lazytpu.kernels.jaxprs import equations, is_kernel, rewritten
from lazytpu.runtime.xla.jax_private import DIFFERENTIATES_MEMORY, kernel_cost

WIDE = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def for_platform(closed: Any, platform: str) -> Any:
    """Return a traced function adapted to a platform."""
    if platform == "cpu":
        return rewritten(closed, _interpret)
    return rewritten(closed, _estimate) if platform == "tpu" else closed


def is_wide(closed: Any) -> bool:
    """Whether a kernel for Mosaic has 64-bit operands or computes with 64-bit numbers, which a TPU lacks."""
    calls = [e for e in equations(closed.jaxpr) if is_kernel(e) and not e.params["interpret"]]
    return any(_has_wide_values(call) for call in calls)


def as_pallas_call(call: Any) -> Any:
    """Return the equation of a `pallas_call` that computes the same as a kernel: the kernel itself, or one with the
    mesh of a `pl.kernel` as its grid, and whole arrays as its blocks.

    Raises NotImplementedError for a `pl.kernel` of several bodies, which run at the same time and may wait for each
    other, and for any `pl.kernel` from jax 0.12 on, whose reverse mode refuses arrays of a kernel's memory.
    """
    if "grid_mapping" in call.params:
        return call
    if not DIFFERENTIATES_MEMORY:
        raise NotImplementedError(
            "a Pallas kernel by pl.kernel has no default gradient with this release of jax, as it has with 0.10: give "
            "its op one with defvjp (docs/custom-kernels.md), or the function a jax.custom_vjp"
        )
    from jax.experimental import pallas as pl  # takes 0.2 s to import; whoever has a kernel has imported it

    (body, *more), (mesh, *_) = _without_aliases(call), call.params["meshes"]
    if more:
        raise NotImplementedError(
            f"a Pallas kernel of {1 + len(more)} bodies on different cores has no default gradient: give its op one "
            "with defvjp (docs/custom-kernels.md), or the function a jax.custom_vjp"
        )
    operands, results = [v.aval for v in call.invars], [v.aval for v in call.outvars]
    scratch = [v.aval for v in body.invars[len(operands) + len(results) :]]

    def run(*refs: Any) -> None:
        core.jaxpr_as_fun(core.ClosedJaxpr(body, ()))(*refs)

    whole = pl.BlockSpec(memory_space=pl.ANY)
    kernel = pl.pallas_call(
        run,
        grid_spec=pl.GridSpec(
            grid=tuple(mesh.shape.items()),
            in_specs=[whole] * len(operands),
            out_specs=[whole] * len(results),
            scratch_shapes=[pl.MemoryRef(ref.inner_aval, ref.memory_space) for ref in scratch],
        ),
        out_shape=[jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in results],
        input_output_aliases=dict(call.params["input_output_aliases"]),
    )
    (equation,) = [e for e in equations(jax.make_jaxpr(kernel)(*operands).jaxpr) if is_kernel(e)]
    return equation


def _interpret(call: Any) -> dict[str, Any]:
    bodies = {"jaxprs": _without_aliases(call)} if "jaxprs" in call.params else {}
    return {"interpret": call.params["interpret"] or True, **bodies}


def _without_aliases(call: Any) -> tuple[Any, ...]:
    """Return the bodies of a `pl.kernel`, in which an operand and the result that has its memory are one reference.
    jax's interpreter keeps two arrays, and loses what is written by way of the operand."""

    def renamed(body: Any) -> Any:
        aliases = call.params["input_output_aliases"].items()
        results = {body.invars[i]: body.invars[len(call.invars) + result] for i, result in aliases}
        renamed_inputs = [
            [v if isinstance(v, core.Literal) else results.get(v, v) for v in equation.invars] for equation in body.eqns
        ]
        pairs = zip(body.eqns, renamed_inputs, strict=True)
        return body.replace(eqns=[equation.replace(invars=inputs) for equation, inputs in pairs])

    return tuple(map(renamed, call.params["jaxprs"]))


def _bodies(call: Any) -> Sequence[Any]:
    """Return the jaxprs of a kernel's bodies."""
    return call.params["jaxprs"] if "jaxprs" in call.params else (call.params["jaxpr"],)


def _has_wide_values(call: Any) -> bool:
    mapping = call.params.get("grid_mapping")
    maps = [block.index_map_jaxpr for block in mapping.block_mappings] if mapping else []
    inner_avals = [v.aval for body in _bodies(call) for e in equations(body) for v in e.outvars]
    avals = [*(v.aval for v in call.invars), *inner_avals, *(a for index_map in maps for a in index_map.out_avals)]
    return any(getattr(a, "dtype", None) in WIDE for a in avals)


def _estimate(call: Any) -> dict[str, Any]:
    params = call.params
    if params.get("cost_estimate") is not None or params["interpret"]:
        return {}
    grids = [params["grid_mapping"].grid] if "grid_mapping" in params else [m.shape.values() for m in params["meshes"]]
    return {"cost_estimate": kernel_cost(_bodies(call), [_steps(grid) for grid in grids], _bytes(call))}


def _steps(grid: Any) -> int:
    """Return the number of runs of the kernel's body; a bound known only at run time counts as 1."""
    return prod(n if isinstance(n, int) else 1 for n in grid)


def _bytes(call: Any) -> int:
    """Return the bytes of the arrays that a call reads and writes, each once: blocks that stay in the chip's memory are
    not fetched again."""
    arrays = [v.aval for v in (*call.invars, *call.outvars) if not isinstance(v, core.Literal)]
    return sum(prod(a.shape) * a.dtype.itemsize for a in arrays)
