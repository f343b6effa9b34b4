"""Cost estimates of Pallas kernels, which XLA's scheduler and the cost report use.

jax's attention kernels have none, so they are added to each kernel in a traced call, by the name of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.experimental import pallas
from jax.extend import core

from lazytpu.ir.attention_work import KERNELS, PASSES_OF_KERNEL, AttentionSize


def estimated(call: Callable[[], Any], size: AttentionSize, passes: int) -> Any:
    """`call()`, with cost estimates on its kernels: the work for `size`, and the number of passes of the matrix unit
    that a product takes."""
    traced, shapes = jax.make_jaxpr(call, return_shape=True)()
    annotated = core.ClosedJaxpr(_annotated(traced.jaxpr, size, passes), traced.consts)
    return jax.tree.unflatten(jax.tree.structure(shapes), core.jaxpr_as_fun(annotated)())


def _annotated(jaxpr: Any, size: AttentionSize, passes: int) -> Any:
    equations: list[Any] = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            params = {**equation.params, **_estimate(equation.params, size, passes)}
        else:
            params = {name: _inside(value, size, passes) for name, value in equation.params.items()}
        equations.append(equation.replace(params=params))
    return jaxpr.replace(eqns=equations)


def _inside(value: Any, size: AttentionSize, passes: int) -> Any:
    """A parameter of an equation, with the jaxprs in it annotated."""
    if isinstance(value, core.ClosedJaxpr):
        return value.replace(jaxpr=_annotated(value.jaxpr, size, passes))
    if isinstance(value, core.Jaxpr):
        return _annotated(value, size, passes)
    return tuple(_inside(item, size, passes) for item in value) if type(value) is tuple else value


def _estimate(params: Mapping[str, Any], size: AttentionSize, passes: int) -> dict[str, Any]:
    """The parameters to add to a kernel such as `splash_mha_dkv_no_residuals`: its cost estimate, and its metadata with
    the number of passes."""
    (kernel,) = set(params["name"].split("_")) & set(KERNELS)
    work, metadata = size.work(kernel), params["metadata"]
    cost = pallas.CostEstimate(flops=work.flops, transcendentals=work.transcendentals, bytes_accessed=work.bytes)
    return {"cost_estimate": cost, "metadata": type(metadata)({**metadata, PASSES_OF_KERNEL: str(passes)})}
