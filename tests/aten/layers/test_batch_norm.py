"""Batch normalization, in all the forms torch records, against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
SHAPES = [(4, 3), (4, 3, 5), (4, 3, 2, 2)]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


def parameters(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """weight, bias, running mean, running variance of 3 channels."""
    x = values(3, dtype=dtype)
    return x, x + 1, x.flip(0), x.abs() + 0.5


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_forward(shape: tuple[int, ...], training: bool) -> None:
    check(A._native_batch_norm_legit.default, values(*shape), *parameters(), training, 0.1, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    x = values(4, 3, 5, dtype=dtype)
    check(A._native_batch_norm_legit.default, x, *parameters(dtype), True, 0.3, 1e-5)
    check(A._native_batch_norm_legit_no_training.default, x, *parameters(dtype), 0.1, 1e-5)
    if dtype is torch.bfloat16:  # mixed: the parameters and statistics stay f32
        check(A._native_batch_norm_legit.default, x, *parameters(), True, 0.3, 1e-5)


def test_functional_forms() -> None:
    x = values(4, 3, 5)
    weight, bias, mean, var = parameters()
    check(A._native_batch_norm_legit.no_stats, x, weight, bias, True, 0.1, 1e-5)
    check(A._native_batch_norm_legit.no_stats, x, None, None, True, 0.1, 1e-5)
    check(A._native_batch_norm_legit_functional.default, x, weight, bias, mean, var, True, 0.1, 1e-5)
    check(A._native_batch_norm_legit_functional.default, x, weight, bias, mean, var, False, 0.1, 1e-5)
    check(A._native_batch_norm_legit_no_training.default, x, None, None, mean, var, 0.1, 1e-5)
    check(A.native_batch_norm.default, x, weight, bias, mean, var, False, 0.1, 1e-5)
    check(A.native_batch_norm.default, x, weight, bias, None, None, True, 0.1, 1e-5)


def test_forms_with_update() -> None:
    x = values(4, 3, 5)
    check(A._batch_norm_with_update.default, x, *parameters(), 0.1, 1e-5)
    check(A._batch_norm_with_update_functional.default, x, *parameters(), 0.1, 1e-5)
    check(A._batch_norm_no_update.default, x, *parameters(), 0.1, 1e-5)


def test_hidden_write_is_refused() -> None:
    x = values(4, 3)
    with pytest.raises(ValueError, match="_native_batch_norm_legit"):
        run(A.native_batch_norm.default, x, *parameters(), True, 0.1, 1e-5, outs=[x, x[0], x[0]])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("train", [True, False])
def test_backward(shape: tuple[int, ...], train: bool) -> None:
    x, grad = values(*shape), values(*shape).flip(0)
    weight, bias, mean, var = parameters()
    _, saved, rstd = A.native_batch_norm.default(x, weight, bias, mean.clone(), var.clone(), train, 0.1, 1e-5)
    masks: Any = ([True, True, True], [True, False, False], [False, True, True])
    for mask in masks:
        check(A.native_batch_norm_backward.default, grad, x, weight, mean, var, saved, rstd, train, 1e-5, mask)
    if train:
        check(A.native_batch_norm_backward.default, grad, x, None, None, None, saved, rstd, True, 1e-5, masks[1])


@pytest.mark.parametrize("update", [True, False])
def test_backward_with_update(update: bool) -> None:
    x, grad = values(4, 3, 5), values(4, 3, 5).flip(0)
    weight, bias, mean, var = parameters()
    _, saved, rstd, reserve = A._batch_norm_with_update.default(x, weight, bias, mean.clone(), var.clone(), 0.1, 1e-5)
    mask = [True, True, True]
    check(A.batch_norm_backward.default, grad, x, weight, mean, var, saved, rstd, update, 1e-5, mask, reserve)


def test_network_loss_is_as_close_to_float64_as_the_cpus() -> None:
    """Two normalized layers, forward: the error against float64 is at most twice the error of torch's own kernels."""
    torch.manual_seed(0)
    x = torch.randn(64, 32, 16, 16) * 3 + 10
    weight, bias, mean, var = torch.rand(32), torch.rand(32), torch.zeros(32), torch.ones(32)
    double = [t.double() for t in (x, weight, bias, mean, var)]
    exact = A._native_batch_norm_legit.default(*double, True, 0.1, 1e-5)[0]
    cpu = A._native_batch_norm_legit.default(x, weight, bias, mean.clone(), var.clone(), True, 0.1, 1e-5)
    ours = run(A._native_batch_norm_legit.default, x, weight, bias, mean, var, True, 0.1, 1e-5, outs=list(cpu))[0]
    error = (cpu[0].double() - exact).abs().mean()
    assert (ours.double() - exact).abs().mean() <= 2 * error
