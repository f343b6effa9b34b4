"""Fused optimizer steps against torch's CPU."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lazytpu.aten import registry
from tests.aten.deferred import check
from tests.aten.harness import run
from tests.aten.samples import FLOATS

A = torch.ops.aten
SHAPES = ((3, 5), (7,), ())
ADAM: dict[str, Any] = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8}
ADAM |= {"amsgrad": False, "maximize": False}
SGD: dict[str, Any] = {"weight_decay": 0.1, "momentum": 0.9, "lr": 0.1, "dampening": 0.0}
SGD |= {"nesterov": False, "maximize": False, "is_first_step": False}
ADAGRAD: dict[str, Any] = {"lr": 1e-2, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-10, "maximize": False}


def tensors(dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def state(dtype: torch.dtype) -> tuple[list[torch.Tensor], ...]:
    """Parameters, gradients, averages, squares."""
    return *(tensors(dtype, i) for i in range(3)), [t.abs() for t in tensors(dtype, 3)]


def steps(count: float) -> list[torch.Tensor]:
    return [torch.tensor(count) for _ in SHAPES]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", [A._fused_adam_.default, A._fused_adamw_.default], ids=str)
@pytest.mark.parametrize(("count", "amsgrad", "maximize"), [(1.0, False, False), (1000.0, True, True)])
def test_adam(op: Any, dtype: torch.dtype, count: float, amsgrad: bool, maximize: bool) -> None:
    largest = [t.abs() for t in tensors(dtype, 4)] if amsgrad else []
    check(op, *state(dtype), largest, steps(count), **{**ADAM, "amsgrad": amsgrad, "maximize": maximize})


@pytest.mark.parametrize("op", [A._fused_adam_.tensor_lr, A._fused_adamw_.tensor_lr], ids=str)
def test_adam_with_learning_rate_in_a_tensor(op: Any) -> None:
    check(op, *state(torch.float32), [], steps(5.0), **{**ADAM, "lr": torch.tensor(1e-2)})


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_adam_with_loss_scale(found_inf: float) -> None:
    scaling = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(found_inf)}
    check(A._fused_adamw_.default, *state(torch.float32), [], steps(5.0), **ADAM, **scaling)


@pytest.mark.parametrize("step", [1, 2, 10, 1000, 100000])
def test_bias_correction_is_in_double_precision(step: int) -> None:
    """A parameter's change is right to a few parts in 10^7, as the CPU's, which corrects in double precision."""
    zero, gradient = torch.zeros(1), torch.ones(1)
    args = ([zero.clone()], [gradient], [zero.clone()], [zero.clone()], [], [torch.tensor(float(step))])
    numbers = {**ADAM, "weight_decay": 0.0, "eps": 0.0}
    results = run(A._fused_adam_.default, *args, outs=[], numbers=True, **numbers)
    m, v = 0.1 / (1 - 0.9**step), 0.001 / (1 - 0.999**step)
    assert results[0].item() == pytest.approx(-1e-2 * m / math.sqrt(v), rel=6e-7)


def test_no_weight_decay() -> None:
    check(A._fused_adam_.default, *state(torch.float32), [], steps(2.0), **{**ADAM, "weight_decay": 0.0})
    check(A._fused_sgd_.default, *state(torch.float32)[:3], **{**SGD, "weight_decay": 0.0})


# For half types, the CPU's vector kernel does not write the parameters back (FusedSGDKernel.cpp in torch 2.13). Its
# scalar kernel, which runs for so few elements, does.
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.0},
        {"is_first_step": True},
        {"dampening": 0.1},
        {"nesterov": True},
        {"maximize": True, "weight_decay": 0.0},
    ],
    ids=str,
)
def test_sgd(dtype: torch.dtype, options: dict[str, Any]) -> None:
    params, grads, buffers, _ = state(dtype)
    settings = {**SGD, **options}
    check(A._fused_sgd_.default, params, grads, buffers if settings["momentum"] else [], **settings)


def test_sgd_with_learning_rate_in_a_tensor_and_loss_scale() -> None:
    params, grads, buffers, _ = state(torch.float32)
    check(A._fused_sgd_.tensor_lr, params, grads, buffers, **{**SGD, "lr": torch.tensor(0.1)})
    scaling = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)}
    check(A._fused_sgd_.default, params, grads, buffers, **SGD, **scaling)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_adagrad(dtype: torch.dtype) -> None:
    params, grads, _, sums = state(dtype)
    check(A._fused_adagrad_.default, params, grads, sums, steps(3.0), **ADAGRAD)
    check(A._fused_adagrad_.tensor_lr, params, grads, sums, steps(3.0), **{**ADAGRAD, "lr": torch.tensor(1e-2)})
    check(A._fused_adagrad_.default, params, grads, sums, steps(3.0), **{**ADAGRAD, "maximize": True})


def test_hyperparameters_are_run_time_numbers() -> None:
    rules = registry.load()
    assert rules["aten._fused_adamw.default"].numbers == {"lr", "beta1", "beta2", "weight_decay", "eps"}
    assert rules["aten._fused_sgd.default"].numbers == {"lr", "momentum", "weight_decay", "dampening"}
    assert rules["aten._fused_adagrad.default"].numbers == {"lr", "lr_decay", "weight_decay", "eps"}
