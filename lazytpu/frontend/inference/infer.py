"""Shapes, dtypes and strides of an op's results, from torch's meta functions; asked once per trie state."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.inference.cpu_errors import ask_cpu
from lazytpu.frontend.inference.refusals import REFUSALS
from lazytpu.frontend.inference.strides import is_iterated, iterated
from lazytpu.frontend.tensors import is_dense, layout
from lazytpu.trace.value import Layout, row_major

aten = torch.ops.aten


def to_meta(value: Any) -> Any:
    """tpu tensors become meta tensors of the same size and stride; devices become meta; the rest stays."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "tpu":
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return [to_meta(v) for v in value]
    if isinstance(value, torch.device):
        return torch.device("meta")
    if isinstance(value, torch.Generator):
        return None
    return value


def infer(op: OpOverload, bound: dict[str, Any]) -> tuple[Any, ...]:
    """One entry per schema return: a Layout, a tuple of Layouts for a list, None for an absent tensor.

    `bound` are the arguments by schema name. Raises what torch raises for these arguments.
    """
    arguments = {name: to_meta(value) for name, value in bound.items()}
    override, refuse = OVERRIDES.get(str(op)), REFUSALS.get(str(op))
    enabled = torch.is_grad_enabled()
    try:
        with torch.no_grad():
            try:
                if refuse is not None:
                    refuse(**arguments)
                results = _call(op, arguments) if override is None else override(**arguments)
            except Exception as refusal:  # noqa: BLE001  (meta functions assert, index, divide)
                results = ask_cpu(op, partial(_call, op), bound, refusal)
    finally:
        torch.set_grad_enabled(enabled)  # an interrupt on the way into no_grad() or out of it would leave it off
    if is_iterated(op):
        results = iterated(op, arguments, results)
    returns = op._schema.returns
    if len(returns) == 1:
        results = (results,)
    elif not returns:
        return ()
    return tuple(_layout(r) for r in results)


def _call(op: OpOverload, arguments: dict[str, Any]) -> Any:
    schema = op._schema.arguments
    given = [a for a in schema if not a.kwarg_only]
    while given and given[-1].name not in arguments:
        given.pop()
    positional = [arguments.get(a.name, a.default_value) for a in given]
    return op(*positional, **{a.name: arguments[a.name] for a in schema if a.kwarg_only and a.name in arguments})


def _layout(result: Any) -> Any:
    if result is None:
        return None
    if isinstance(result, list | tuple):
        return tuple(_layout(r) for r in result)
    shape, stride = tuple(result.shape), tuple(result.stride())
    return _dense(result.dtype, shape, stride)


def _dense(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Layout:
    """Kernels make dense memory; a meta function that hands out overlapping or gapped strides means contiguous."""
    return layout(dtype, shape, stride if is_dense(shape, stride) else row_major(shape))


# Ops whose meta function is missing, or wrong about the strides that the CPU gives.
OVERRIDES: dict[str, Any] = {}


def override(*names: str) -> Any:
    """Register the decorated function as the meta function of the overloads `names`."""

    def register(function: Any) -> Any:
        for name in names:
            OVERRIDES[name] = function
        return function

    return register


def _multiplied(op: OpOverload, first: str, second: str) -> None:
    """The CPU refuses matrices of two dtypes; the meta functions do not."""

    def check(**arguments: Any) -> torch.Tensor:
        one, other = arguments[first].dtype, arguments[second].dtype
        if one != other:
            raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {one} != {other}")
        return op(**arguments)

    OVERRIDES[str(op)] = check


for _op, _first, _second in (
    (aten.mm.default, "self", "mat2"),
    (aten.addmm.default, "mat1", "mat2"),
    (aten.bmm.default, "self", "mat2"),
    (aten.baddbmm.default, "batch1", "batch2"),
    (aten.mv.default, "self", "vec"),
    (aten.addmv.default, "mat", "vec"),
    (aten.dot.default, "self", "tensor"),
):
    _multiplied(_op, _first, _second)


@override(
    "aten._fused_adam_.tensor_lr",
    "aten._fused_adamw_.tensor_lr",
    "aten._fused_sgd_.default",
    "aten._fused_sgd_.tensor_lr",
    "aten._fused_adagrad_.default",
    "aten._fused_adagrad_.tensor_lr",
)
def fused_step(**arguments: Any) -> tuple[()]:
    """Optimizer steps that only write have nothing to infer, and torch has no meta functions of these."""
    return ()


@override("aten.multi_margin_loss_backward.default", "aten.multilabel_margin_loss_backward.default")
def gradient_of_self(**arguments: Any) -> torch.Tensor:
    """torch has no meta function of these: a contiguous gradient of self."""
    return torch.empty_like(arguments["self"], memory_format=torch.contiguous_format)
