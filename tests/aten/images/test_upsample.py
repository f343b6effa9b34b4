"""Upsampling and its gradients against torch's CPU."""

from __future__ import annotations

from math import inf

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
NEAREST = [f"upsample_nearest{n}d" for n in (1, 2, 3)] + [f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)]
WEIGHTED = ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"]
ANTIALIASED = ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]
# Up by 2 and 3, up by no whole factor, down, the same.
SIZES = {1: [[10], [15], [7], [3], [5]], 2: [[10, 12], [7, 9], [3, 2], [5, 12]], 3: [[10, 8, 6], [3, 5, 4]]}
SHAPE = (2, 3, 5, 4, 3)


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.randint(0, 200, shape).to(dtype)


def rank_of(name: str) -> int:
    return int(name.split("d")[0][-1]) if "2d" not in name else 2


def check_family(name: str, size: list[int], dtype: torch.dtype, align: bool | None, scales: tuple = ()) -> None:
    rank = len(size)
    x = values(*SHAPE[: 2 + rank], dtype=dtype)
    options = ([] if align is None else [align], list(scales))
    loose = {"rtol": 0.03, "atol": 0.03} if dtype in FLOATS[2:] else {"rtol": 1e-4, "atol": 2e-5}
    check(getattr(A, name).default, x, size, *options[0], *options[1], **loose)
    if dtype.is_floating_point:
        grad = values(*x.shape[:2], *size, dtype=dtype)
        check(getattr(A, f"{name}_backward").default, grad, size, list(x.shape), *options[0], *options[1], **loose)


@pytest.mark.parametrize("name", NEAREST)
def test_nearest(name: str) -> None:
    for size in SIZES[rank_of(name)]:
        check_family(name, size, torch.float32, None)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("name", [*WEIGHTED, *ANTIALIASED])
def test_weighted(name: str, align: bool) -> None:
    for size in SIZES[rank_of(name)]:
        check_family(name, size, torch.float32, align)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    for size in ([10, 12], [7, 9]):
        check_family("upsample_nearest2d", size, dtype, None)
        check_family("upsample_bilinear2d", size, dtype, False)
        check_family("upsample_bicubic2d", size, dtype, True)


def test_bytes() -> None:
    check_family("upsample_nearest2d", [10, 9], torch.uint8, None)
    for name in ("upsample_bilinear2d", "upsample_bicubic2d", *ANTIALIASED):
        for size in ([10, 7], [3, 12], [5, 4]):
            check(getattr(A, name).default, values(1, 3, 5, 4, dtype=torch.uint8), size, False)
    check(A.upsample_bicubic2d.default, values(1, 3, 5, 4, dtype=torch.uint8), [7, 7], True, 1.4, 1.7)


def test_scales() -> None:
    check_family("upsample_nearest2d", [11, 9], torch.float32, None, (2.3, 2.4))
    check_family("upsample_bilinear2d", [11, 9], torch.float32, False, (2.3, 2.4))
    check_family("upsample_bicubic2d", [11, 9], torch.float32, False, (2.3, None))
    check_family("upsample_linear1d", [12], torch.float32, False, (2.5,))
    x = values(2, 3, 5, 4)
    check(A.upsample_nearest2d.vec, x, None, [2.5, 1.75])
    check(A.upsample_nearest2d.vec, x, [7, 8], None)
    check(A.upsample_bilinear2d.vec, x, None, False, [2.5, 1.75], rtol=1e-4, atol=1e-5)
    check(A.upsample_trilinear3d.vec, values(1, 2, 3, 4, 2), [6, 8, 4], True, None, rtol=1e-4, atol=1e-5)


def test_infinities_stay_local() -> None:
    x = values(1, 1, 6, 6)
    x[0, 0, 2, 2] = inf
    check(A.upsample_nearest2d.default, x, [12, 12])
    check(A.upsample_nearest2d.default, x, [8, 8])
    check(A._upsample_bilinear2d_aa.default, x, [4, 4], False)


def test_long_rows() -> None:
    for size, places in ((7, 63), (41, 123), (100, 333), (333, 100)):
        x = values(1, 1, size)
        check(A.upsample_nearest1d.default, x, [places])
        check(A._upsample_nearest_exact1d.default, x, [places])
        check(A.upsample_linear1d.default, x, [places], False, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradients_of_zero_are_positive(mode: str, dtype: torch.dtype) -> None:
    results: list[torch.Tensor] = []
    for device in ("cpu", "tpu"):
        x = torch.ones(1, 1, 9, 9, dtype=dtype, device=device).requires_grad_()
        y = torch.nn.functional.interpolate(x, (5, 7), mode=mode)
        results.append(torch.autograd.grad(y, x, torch.full_like(y, -0.0))[0].cpu())
    assert results[0].equal(results[1]) and results[0].signbit().equal(results[1].signbit())
