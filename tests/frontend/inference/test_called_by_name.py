"""Ops called by name whose results beside the main one have shapes and dtypes of their own, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

A: Any = torch.ops.aten
HALF, BFLOAT = torch.float16, torch.bfloat16


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def moved(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [moved(v, device) for v in value]
    return value.to(device, copy=True) if isinstance(value, torch.Tensor) else value


def leaves(value: Any) -> list[torch.Tensor]:
    return [v for part in value for v in leaves(part)] if isinstance(value, list | tuple) else [value]


def assert_same(op: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    expected, results = (leaves(op(*moved(list(args), device), **kwargs)) for device in ("cpu", "tpu"))
    for x, y in zip(results, expected, strict=True):
        assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        tolerance = {BFLOAT: 1.6e-2, HALF: 2e-3}.get(y.dtype, 1e-3 if BFLOAT in [v.dtype for v in expected] else 1e-5)
        torch.testing.assert_close(x.cpu(), y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT, HALF])
def test_functional_batch_norms(dtype: torch.dtype) -> None:
    x, weight, mean = values(2, 3, 4, dtype=dtype), values(3, dtype=dtype), values(3, dtype=dtype)
    rest = x, weight, mean, mean, weight.abs()
    for training in (True, False):
        assert_same(A._native_batch_norm_legit_functional, *rest, training, 0.1, 1e-5)
    assert_same(A._batch_norm_with_update_functional, *rest, 0.1, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, BFLOAT, HALF])
def test_norms_of_weights_are_wide(dtype: torch.dtype) -> None:
    assert_same(A._weight_norm_interface, values(4, 6, dtype=dtype), values(4, 1, dtype=dtype), 0)


@pytest.mark.parametrize("shape", [(6,), (1,), (), (4, 6), (0, 6)])
def test_multilabel_loss_of_a_row(shape: tuple[int, ...]) -> None:
    targets = torch.arange(6).expand(4, 6)[: shape[0] if len(shape) > 1 else 1] if shape and shape[-1] == 6 else None
    targets = torch.zeros(shape, dtype=torch.int64) if targets is None else targets.reshape(shape)
    for reduction in range(3):
        if shape[:1] != (0,) or reduction == 0:
            assert_same(A.multilabel_margin_loss_forward, values(*shape), targets, reduction)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("counts", [False, True])
def test_unique_returns_the_requested_results(inverse: bool, counts: bool) -> None:
    x = torch.tensor([[1, 2], [1, 2], [3, 4], [1, 2]])
    for tensor in (x, x > 1, x.float(), x[:0], x[0, 0]):
        assert_same(A._unique, tensor, True, inverse)
        assert_same(A._unique2, tensor, True, inverse, counts)
        assert_same(A.unique_consecutive, tensor, inverse, counts)
    for tensor in (x, x[:0]):
        assert_same(A.unique_consecutive, tensor, inverse, counts, 0)
        assert_same(A.unique_dim_consecutive, tensor, 0, inverse, counts)
        assert_same(A.unique_dim, tensor, 0, True, inverse, counts)


def test_functional_steps_of_optimizers() -> None:
    parameters, gradients, state = [values(3), values(2)], [values(3) + 1, values(2) + 1], [values(3).abs(), values(2)]
    options = {"weight_decay": 0.1, "lr": 0.1, "maximize": False}
    momentum = {"momentum": 0.9, "dampening": 0.0, "nesterov": True, "is_first_step": False}
    assert_same(A._fused_sgd, parameters, gradients, state, **options, **momentum)
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    squares = [x.abs() for x in state]
    assert_same(A._fused_adagrad, parameters, gradients, squares, steps, **options, lr_decay=0.0, eps=1e-8)
