"""Ops called by names that PyTorch keeps for one device or for its own kernels, against torch's CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

A: Any = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def results(function: Callable[..., Any], device: str, *args: Any) -> list[torch.Tensor]:
    moved = [x.to(device, copy=True) if isinstance(x, torch.Tensor) else x for x in args]
    outcome = function(*moved)
    return [x.cpu() for x in (outcome if isinstance(outcome, list | tuple) else [outcome])]


def same(function: Callable[..., Any], *args: Any) -> None:
    for ours, expected in zip(results(function, "tpu", *args), results(function, "cpu", *args), strict=True):
        assert (ours.shape, ours.dtype, ours.stride()) == (expected.shape, expected.dtype, expected.stride())
        tolerance = 1e-2 if ours.dtype in HALVES else 1e-5
        torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bias", [False, True])
def test_slow_convolutions(bias: bool) -> None:
    image, weight, offset = values(2, 3, 8, 9), values(4, 3, 3, 2), values(4) if bias else None
    same(A._slow_conv2d_forward, image, weight, [3, 2], offset, [2, 1], [1, 0])
    same(A.thnn_conv2d, image, weight, [3, 2], offset, [2, 1], [1, 0])
    rest = (values(2, 4, 4, 8), image, weight, [3, 2], [2, 1], [1, 0])
    same(A._slow_conv2d_backward.output_mask, *rest, [True, True, True])

    def written(grad: torch.Tensor, *others: Any) -> Any:
        names = ("grad_input", "grad_weight", "grad_bias")
        return A._slow_conv2d_backward.grad_input(grad, *others, **{name: grad.new_empty(0) for name in names})

    same(written, *rest)


def test_slow_convolutions_have_gradients() -> None:
    def gradients(image: torch.Tensor, weight: torch.Tensor) -> Any:
        leaves = image.requires_grad_(), weight.requires_grad_()
        return torch.autograd.grad(A.thnn_conv2d(*leaves, [3, 2], None, [1, 1], [0, 0]).square().sum(), leaves)

    same(gradients, values(2, 3, 8, 9), values(4, 3, 3, 2))


def test_the_fallback_of_sampled_grids() -> None:
    image, grid = values(2, 3, 8, 8), values(2, 4, 5, 2).tanh()
    for mode in range(3):
        same(A._grid_sampler_2d_cpu_fallback, image, grid, mode, 0, False)
    same(A._grid_sampler_2d_cpu_fallback_backward, values(2, 3, 4, 5), image, grid, 0, 1, True)


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_factors_of_lists_are_on_either_device(name: str) -> None:
    factors, lists = torch.tensor([2.0, -3.0]), [[values(3) + i, values(2) - i] for i in range(3)]
    expected = getattr(A, f"_foreach_{name}").Tensor(*lists, factors)
    for device in ("cpu", "tpu"):
        targets, first, second = ([x.to("tpu") for x in part] for part in lists)
        ours = getattr(A, f"_foreach_{name}").Tensor(targets, first, second, factors.to(device))
        getattr(A, f"_foreach_{name}_").Tensor(targets, first, second, factors.to(device))
        for x, y, z in zip(ours, targets, expected, strict=True):
            torch.testing.assert_close(x.cpu(), z)
            torch.testing.assert_close(y.cpu(), z)


def test_factors_of_lists_must_fit() -> None:
    tensors = [torch.ones(2, device="tpu")]
    with pytest.raises(RuntimeError, match="Got 0 instead"):
        A._foreach_addcmul.Tensor(tensors, tensors, tensors, torch.tensor(1.0))
    with pytest.raises(RuntimeError, match="input of length 1 but got 2 instead"):
        A._foreach_addcmul_.Tensor(tensors, tensors, tensors, torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_products_by_int8_weights(dtype: torch.dtype) -> None:
    weight = torch.arange(-128, 128, dtype=torch.int16).to(torch.int8).view(4, 64)
    same(A._weight_int8pack_mm, values(8, 64, dtype=dtype), weight, values(4, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
def test_biased_heads_have_the_same_bits(dtype: torch.dtype) -> None:
    arguments = values(2, 5, 120, dtype=dtype), values(120, dtype=dtype), 2
    same(A._transform_bias_rescale_qkv, *arguments)
    ours, expected = (results(A._transform_bias_rescale_qkv, device, *arguments) for device in ("tpu", "cpu"))
    assert all(x.equal(y) for x, y in zip(ours, expected, strict=True))


@pytest.mark.parametrize("name", ["_cummax_helper", "_cummin_helper"])
def test_helpers_of_running_extremes(name: str) -> None:
    def helper(x: torch.Tensor, extremes: torch.Tensor, indices: torch.Tensor) -> Any:
        assert getattr(A, name)(x, extremes, indices, 1) is None
        return extremes, indices

    same(helper, values(4, 7), torch.zeros(4, 7), torch.zeros(4, 7, dtype=torch.int64))


def test_parameters_by_search() -> None:
    same(lambda x: A.choose_qparams_optimized(x, 64, 200, 0.16, 8), values(64))
