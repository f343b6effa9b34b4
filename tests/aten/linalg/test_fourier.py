"""Fourier transforms against torch's CPU."""

from __future__ import annotations

import math

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten


def values(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("dim", [[0], [3], [0, 1], [1, 0, 2], [0, 1, 2, 3]], ids=str)
def test_complex(dtype: torch.dtype, dim: list[int]) -> None:
    for normalization, forward in ((0, True), (1, False), (2, False)):
        check(A._fft_c2c.default, values(3, 4, 5, 2, dtype=dtype), dim, normalization, forward)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [[0], [2], [0, 1], [2, 0, 1]], ids=str)
def test_real(dtype: torch.dtype, dim: list[int]) -> None:
    x = values(3, 4, 5, dtype=dtype)
    check(A._fft_r2c.default, x, dim, 0, True)
    check(A._fft_r2c.default, x, dim, 1, False)
    half = torch.fft.rfftn(x, dim=dim)
    check(A._fft_c2r.default, half, dim, 2, x.shape[dim[-1]])


def test_lengths() -> None:
    half = torch.fft.rfft(values(3, 8, dtype=torch.float32))
    for last in (8, 9):
        check(A._fft_c2r.default, half, [1], 0, last)
    check(A._fft_r2c.default, torch.ones(3, 1), [1], 0, True)


def test_normalization_keeps_infinities_and_signs_of_zero() -> None:
    x = torch.randint(-5, 5, (7, 12, 10), generator=torch.Generator().manual_seed(0))
    ours, expected = (torch.fft.ihfft2(x.to(device), norm="ortho").cpu() for device in ("tpu", "cpu"))
    for part, want in zip(torch.view_as_real(ours).unbind(-1), torch.view_as_real(expected).unbind(-1), strict=True):
        zeros = (part == 0) & (want == 0)
        assert part[zeros].signbit().equal(want[zeros].signbit())
    z = torch.ones(4, 8, dtype=torch.complex64)
    z[0, 0] = complex(math.inf, 1)
    for function in (torch.fft.fft, torch.fft.ifft):
        ours, expected = (torch.view_as_real(function(z.to(d), norm="ortho").cpu()) for d in ("tpu", "cpu"))
        assert ours.isnan().equal(expected.isnan())


@pytest.mark.parametrize("dims", [[1], [0], [0, 1], [1, 2], [2, 0, 1]], ids=str)
@pytest.mark.parametrize("shape", [(4, 6, 5), (3, 1, 2), (2, 5, 7)], ids=str)
def test_second_half_of_a_real_spectrum_is_exactly_the_conjugate_of_the_first(
    shape: tuple[int, ...], dims: list[int]
) -> None:
    x = values(*shape, dtype=torch.float32)
    check(A._fft_r2c.default, x, dims, 0, False)
    spectrum = A._fft_r2c(x.to("tpu"), dims, 0, False).cpu()
    mirrored = spectrum.roll([-1] * len(dims), dims).flip(dims).conj()
    half = torch.arange(shape[dims[-1]] // 2 + 1, shape[dims[-1]])
    assert torch.equal(spectrum.index_select(dims[-1], half), mirrored.index_select(dims[-1], half))


def test_zeros_of_the_spectrum_of_real_numbers_have_the_signs_of_the_cpu() -> None:
    x = torch.tensor([[1.0, 2, 3, 4], [0, 0, 0, 0], [1, 1, 1, 1]])
    results = [torch.fft.fft(x.to(device)).cpu().imag for device in ("cpu", "tpu")]
    assert torch.equal(*results) and torch.equal(results[0].signbit(), results[1].signbit())
