"""Cost estimates beside Pallas kernels: what XLA schedules by, and what the cost report takes for their time.

jax's attention kernels come without. A traced call of them is given one for each kernel in it, by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental import pallas
from jax.extend import core

from lazytpu.ir.attention_work import KERNELS, PASSES_OF_KERNEL, AttentionSize


def estimated(call: Callable[[], Any], size: AttentionSize, passes: int) -> Any:
    """`call()`, whose kernels say what `size` takes, and how many passes of the matrix unit their products take."""
    traced, shapes = jax.make_jaxpr(call, return_shape=True)()
    told = core.ClosedJaxpr(_told(traced.jaxpr, size, passes), traced.consts)
    return jax.tree.unflatten(jax.tree.structure(shapes), core.jaxpr_as_fun(told)())


def _told(jaxpr: Any, size: AttentionSize, passes: int) -> Any:
    equations: list[Any] = []
    for each in jaxpr.eqns:
        if each.primitive.name == "pallas_call":
            params = {**each.params, **_estimate(each.params, size, passes)}
        else:
            params = {name: _inside(value, size, passes) for name, value in each.params.items()}
        equations.append(each.replace(params=params))
    return jaxpr.replace(eqns=equations)


def _inside(value: Any, size: AttentionSize, passes: int) -> Any:
    """A parameter of an op, with the functions that it holds."""
    if isinstance(value, core.ClosedJaxpr):
        return value.replace(jaxpr=_told(value.jaxpr, size, passes))
    if isinstance(value, core.Jaxpr):
        return _told(value, size, passes)
    return tuple(_inside(each, size, passes) for each in value) if type(value) is tuple else value


def _estimate(params: Mapping[str, Any], size: AttentionSize, passes: int) -> dict[str, Any]:
    """`splash_mha_dkv_no_residuals`, and what it tells its profiler, with the passes."""
    (kernel,) = set(params["name"].split("_")) & set(KERNELS)
    work, metadata = size.work(kernel), params["metadata"]
    cost = pallas.CostEstimate(flops=work.flops, transcendentals=work.transcendentals, bytes_accessed=work.bytes)
    return {"cost_estimate": cost, "metadata": type(metadata)({**metadata, PASSES_OF_KERNEL: str(passes)})}
