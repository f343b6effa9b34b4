"""Matrix products against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.aten.deferred import check

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
DTYPES = [*FLOATS, torch.int64, torch.int32, torch.int8, torch.complex64, torch.complex128]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(-4, 5, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: torch.dtype) -> None:
    check(A.mm.default, values(3, 4, dtype=dtype), values(4, 5, dtype=dtype))
    check(A.bmm.default, values(2, 3, 4, dtype=dtype), values(2, 4, 5, dtype=dtype))
    check(A.mv.default, values(3, 4, dtype=dtype), values(4, dtype=dtype))
    check(A.dot.default, values(4, dtype=dtype), values(4, dtype=dtype).flip(0))
    check(A.vdot.default, values(4, dtype=dtype), values(4, dtype=dtype).flip(0))
    check(A.addmm.default, values(5, dtype=dtype), values(3, 4, dtype=dtype), values(4, 5, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_alpha_and_beta(dtype: torch.dtype) -> None:
    a, c = values(3, 4, dtype=dtype), values(4, 5, dtype=dtype)
    check(A.addmm.default, values(3, 5, dtype=dtype), a, c, beta=2, alpha=3)
    check(A.addmm.default, values(3, 1, dtype=dtype), a, c, beta=2)
    check(A.addmm.default, values(5, dtype=dtype), a, c, alpha=-1)
    check(A.baddbmm.default, values(1, 3, 5, dtype=dtype), a[None], c[None], beta=2, alpha=3)
    check(A.addbmm.default, values(3, 5, dtype=dtype), a.repeat(2, 1, 1), c.repeat(2, 1, 1), beta=2, alpha=3)
    check(A.addmv.default, values(3, dtype=dtype), a, c[:, 0].contiguous(), beta=2, alpha=3)
    check(A.addr.default, values(3, 5, dtype=dtype), a[:, 0].contiguous(), c[0], beta=2, alpha=3)


def test_fractions() -> None:
    check(A.addmm.default, values(5), values(3, 4), values(4, 5), beta=0.3, alpha=0.7)
    check(
        A.addmm.default,
        values(5, dtype=torch.complex64),
        *(values(3, 3 + i, dtype=torch.complex64)[:, :k] for i, k in ((0, 3), (2, 5))),
        alpha=0.5j,
    )


def test_beta_zero_ignores_self() -> None:
    nan = torch.full((3, 5), float("nan"))
    check(A.addmm.default, nan, values(3, 4), values(4, 5), beta=0)
    check(A.baddbmm.default, nan[None], values(1, 3, 4), values(1, 4, 5), beta=0)


def test_empty() -> None:
    check(A.mm.default, torch.ones(3, 0), torch.ones(0, 5))
    check(A.mm.default, torch.ones(0, 4), torch.ones(4, 5))
    check(A.bmm.default, torch.ones(0, 3, 4), torch.ones(0, 4, 5))
    check(A.addmm.default, values(5), torch.ones(3, 0), torch.ones(0, 5))
    check(A.dot.default, torch.ones(0), torch.ones(0))


def test_halves_are_accumulated_wide() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        x, y = values(4, 2000, dtype=dtype), values(2000, 4, dtype=dtype)
        exact = (x.double() @ y.double()).to(dtype)
        check(A.mm.default, x, y, atol=0.25 if dtype is torch.bfloat16 else 0.04)
        assert exact.isfinite().all()


def test_int8_products_are_int32() -> None:
    check(A._int_mm.default, values(17, 8, dtype=torch.int8) * 30, values(8, 8, dtype=torch.int8) * 30)


def test_addr_scales_its_first_vector() -> None:
    """The product of the vectors would overflow."""
    large = torch.tensor([1e30, -1e30, 1.0])
    check(A.addr.default, torch.zeros(3, 2), large, torch.tensor([1e9, 2.0]), beta=1, alpha=1e-3)
    check(A.addr.default, torch.zeros(3, 2), large, torch.tensor([1e9, 2.0]), beta=0.5, alpha=1e-3)


def test_addr_of_bools() -> None:
    x, row, column = (
        torch.tensor([[True, False], [False, False]]),
        torch.tensor([True, False]),
        torch.tensor([True, True]),
    )
    check(A.addr.default, x, row, column)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_that_torch_decomposes(dtype: torch.dtype) -> None:
    check(A._addmm_activation.default, values(5, dtype=dtype), values(3, 4, dtype=dtype), values(4, 5, dtype=dtype))
    check(A.addr.default, values(5, dtype=dtype), values(3, dtype=dtype), values(5, dtype=dtype))


def test_trilinear() -> None:
    check(A._trilinear.default, values(6, 8), values(7, 8, 5), values(6, 5), [1, 3], [0], [1, 2], [2, 3])
