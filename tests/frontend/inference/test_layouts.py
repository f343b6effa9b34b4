"""Results whose dtypes and strides differ between torch's meta functions and the CPU's kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

A = torch.ops.aten
FORMATS = (torch.contiguous_format, torch.channels_last)


def same(make: Callable[[str], Any]) -> None:
    for got, expected in zip(make("tpu"), make("cpu"), strict=True):
        assert (got.dtype, got.shape, got.stride()) == (expected.dtype, expected.shape, expected.stride())
        coarse = expected.dtype is torch.bfloat16  # the CPU rounds the statistics before it uses them
        torch.testing.assert_close(got.cpu(), expected, **({"rtol": 2e-2, "atol": 1e-2} if coarse else {}))


def batch(device: str, dtype: torch.dtype, parameters: torch.dtype) -> tuple[torch.Tensor, ...]:
    x = torch.arange(24.0).sin().reshape(4, 2, 3).to(device, dtype)
    return x, *(torch.full((2,), n, dtype=parameters, device=device) for n in (1.5, 0.5, 0.0, 1.0))


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16], ids=str)
def test_saved_statistics(parameters: torch.dtype) -> None:
    for train in (True, False):
        same(lambda d, t=train: A._native_batch_norm_legit(*batch(d, torch.bfloat16, parameters), t, 0.1, 1e-5))
        same(lambda d, t=train: torch.native_batch_norm(*batch(d, torch.bfloat16, parameters), t, 0.1, 1e-5))
    same(lambda d: A._batch_norm_with_update(*batch(d, torch.bfloat16, parameters), 0.1, 1e-5)[:3])
    same(lambda d: A._batch_norm_no_update(*batch(d, torch.bfloat16, parameters), 0.1, 1e-5)[:3])


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16, None], ids=str)
def test_statistics_of_layers_and_groups(parameters: torch.dtype | None) -> None:
    def make(device: str) -> tuple[torch.Tensor, ...]:
        x = torch.arange(24.0).sin().reshape(2, 4, 3).to(device, torch.bfloat16)
        weight = None if parameters is None else torch.full((4,), 1.5, dtype=parameters, device=device)
        layers = A.native_layer_norm(x.mT, [4], weight, weight, 1e-5)
        return *layers, *A.native_group_norm(x, weight, weight, 2, 4, 3, 2, 1e-5)

    same(make)


def test_parameters_of_other_dtypes() -> None:
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="all inputs must share same datatype"):
            A._native_batch_norm_legit(*batch(device, torch.float64, torch.float32), True, 0.1, 1e-5)


def test_batch_norm_into_given_tensors() -> None:
    def make(device: str) -> list[torch.Tensor]:
        x, weight, bias, mean, var = batch(device, torch.float32, torch.float32)
        outs = [torch.empty(0, device=device) for _ in range(3)]
        names = dict(zip(("out", "save_mean", "save_invstd"), outs, strict=True))
        A._native_batch_norm_legit.out(x, weight, bias, mean, var, True, 0.1, 1e-5, **names)
        return [*outs, mean, var]

    same(make)


@pytest.mark.parametrize("kept", FORMATS, ids=str)
def test_unpooling_keeps_the_format(kept: torch.memory_format) -> None:
    def make(device: str) -> list[torch.Tensor]:
        x = torch.arange(24.0).reshape(1, 2, 3, 4).to(device).contiguous(memory_format=kept).requires_grad_()
        result = F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)
        return [result.detach(), *torch.autograd.grad(result.square().sum(), x)]

    same(make)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kept", [torch.contiguous_format, torch.channels_last_3d], ids=str)
def test_pooling_an_image_without_a_batch_keeps_the_format(channels: int, kept: torch.memory_format) -> None:
    def make(device: str) -> list[torch.Tensor]:
        x = torch.arange(channels * 60.0).reshape(1, channels, 3, 4, 5).contiguous(memory_format=kept)
        x = x.squeeze(0).to(device).requires_grad_()
        result, indices = F.max_pool3d(x, 2, return_indices=True)
        return [result.detach(), indices, *torch.autograd.grad(result.square().sum(), x)]

    same(make)


@pytest.mark.parametrize("stride", [(1, 2, 3), (0, 1, 0), (20, 10, 5), (12, 4, 1)], ids=str)
def test_new_empty_strided_has_any_strides(stride: tuple[int, ...]) -> None:
    def make(device: str) -> list[torch.Tensor]:
        return [torch.ones(2, device=device).new_empty_strided((2, 3, 2), stride).zero_()]

    same(make)
