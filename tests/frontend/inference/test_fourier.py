"""Strides of Fourier transforms, over every order of dimensions in memory and of transformed dimensions."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

DIMS = [dim for count in (1, 2, 3) for dim in permutations(range(3), count)]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_strides_as_on_the_cpu(order: tuple[int, ...]) -> None:
    real = torch.empty(3, 4, 5).permute(order)
    complex_ = torch.empty(3, 4, 5, dtype=torch.complex64).permute(order)
    on_tpu = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="tpu") for t in (real, complex_)]
    for dim in DIMS:
        strides = [f(t, dim=dim).stride() for t in on_tpu for f in functions(t)]
        assert strides == [f(t, dim=dim).stride() for t in (real, complex_) for f in functions(t)], dim


def functions(t: torch.Tensor) -> list:
    return [torch.fft.fftn, torch.fft.irfftn, torch.fft.hfftn] if t.is_complex() else [torch.fft.rfftn, torch.fft.fftn]


def test_values_follow_the_strides() -> None:
    x = torch.arange(60.0).reshape(3, 4, 5).permute(2, 0, 1)
    result = torch.fft.rfftn(x.to("tpu"), dim=(0, 2))
    torch.testing.assert_close(result.cpu(), torch.fft.rfftn(x, dim=(0, 2)))
    assert result.flatten()[:3].shape == (3,)
