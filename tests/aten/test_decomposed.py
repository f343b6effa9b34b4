"""Ops of the convolution, pooling, padding, sampling, scan and Fourier families without a rule: their decompositions
have the results of torch's CPU."""

from __future__ import annotations

import pytest
import torch

from lazytpu.aten.dispatch import supported
from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
LOOSE = {"rtol": 1e-3, "atol": 1e-4}


def values(*shape: int) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape)


def complex_values(*shape: int) -> torch.Tensor:
    return torch.complex(values(*shape), values(*shape).flip(0))


def cases() -> list[tuple]:
    x, w = values(2, 4, 6, 6), values(5, 4, 3, 3)
    ones, both_gradients = [1, 1], [True, True, True]
    grads = (values(2, 4, 6, 6), values(4, 4, 3, 3), values(4), values(2, 4, 6, 6), values(4, 4, 3, 3) * 2, x)
    return [
        (A.affine_grid_generator.default, values(2, 2, 3), [2, 3, 4, 5], False),
        (A.im2col.default, x, [3, 2], ones, [1, 0], [2, 1]),
        (A.col2im.default, values(2, 24, 20), [6, 6], [3, 2], ones, [0, 0], ones),
        (A.pixel_shuffle.default, x, 2),
        (A.pixel_unshuffle.default, x, 2),
        (A.channel_shuffle.default, x, 2),
        (A.native_channel_shuffle.default, x, 2),
        (A.conv_tbc.default, values(7, 2, 3), values(3, 3, 4), values(4), 1),
        (A.conv_tbc_backward.default, values(7, 2, 4), values(7, 2, 3), values(3, 3, 4), values(4), 1),
        (A.conv1d.default, values(4, 6), values(5, 4, 3)),
        (A.conv2d.padding, x, w, values(5), ones, "same", ones, 1),
        (A.conv_transpose2d.input, x, values(4, 5, 3, 3), values(5)),
        (A._convolution.default, x, w, values(5), ones, ones, ones, False, [0, 0], 1, False, False, False, True),
        (A._convolution_double_backward.default, *grads, ones, ones, ones, False, [0, 0], 1, both_gradients),
        (A._pad_circular.default, x, [1, 2, 0, 1]),
        (A.max_pool1d.default, values(2, 3, 8), [3], [2]),
        (A.avg_pool1d.default, values(2, 3, 8), [3], [2]),
        (A.adaptive_avg_pool1d.default, values(2, 3, 8), [3]),
        (A.adaptive_max_pool1d.default, values(2, 3, 8), [3]),
        (A.cummaxmin_backward.default, values(3, 4), values(3, 4), torch.arange(4).repeat(3, 1) // 2, 1),
        (A.cumprod_backward.default, values(3, 4), values(3, 4), 1, values(3, 4).cumprod(1)),
        (A.fft_fft.default, values(3, 5)),
        (A.fft_rfft.default, values(3, 5), 7),
        (A.fft_irfft.default, complex_values(3, 5)),
        (A.fft_hfft.default, complex_values(3, 5)),
        (A.fft_ifftn.default, values(3, 5, 4)),
        (A.fft_fftshift.default, values(5, 4)),
        (A.rrelu_with_noise_backward.default, values(3, 4), values(3, 4), values(3, 4).abs(), 0.1, 0.3, True, False),
    ]


@pytest.mark.parametrize("case", cases(), ids=lambda case: str(case[0]))
def test_values(case: tuple) -> None:
    check(*case, **LOOSE)


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"])
def test_dropouts(name: str) -> None:
    x = torch.ones(20, 30, 2)
    (y,) = run(getattr(A, name).default, x, 0.4, True, outs=[x], rng=(1, 2))
    assert abs((y == y.max()).double().mean() - 0.6) < 0.1
    assert y.unique().numel() == 2


FAMILIES = (
    "conv convolution pool pad upsample grid_sampler cum logcumsumexp normal uniform bernoulli dropout exponential "
    "geometric cauchy rand multinomial poisson binomial gamma dirichlet rrelu arange full zeros ones eye linspace "
    "logspace fft im2col col2im shuffle scalar_tensor empty tril_indices triu_indices"
).split()


def test_every_core_op_is_supported() -> None:
    packets = [getattr(A, name) for name in dir(A) if any(f in name for f in FAMILIES)]
    ops = [getattr(p, o) for p in packets if hasattr(p, "overloads") for o in p.overloads()]
    core = [op for op in ops if torch.Tag.core in op.tags]
    assert len(core) >= 35
    assert [str(op) for op in core if not supported(op)] == []
