"""Complex functions at infinities, zeros and on branch cuts, against the CPU's."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

from tests.aten.batch import Case, check_all

A = torch.ops.aten
PARTS = (0.0, -0.0, 0.5, -2.0, inf, -inf, nan)
GRID = torch.tensor([complex(re, im) for re in PARTS for im in PARTS], dtype=torch.complex64)
FINITE = GRID[torch.view_as_real(GRID).isfinite().all(-1)]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_limits(dtype: torch.dtype) -> None:
    z, finite = GRID.to(dtype), FINITE.to(dtype)
    cases = [Case(A.abs.default, (z,)), Case(A.exp.default, (z,)), Case(A.exp2.default, (finite,))]
    without_nan = z[~torch.view_as_real(z).isnan().any(-1)]
    cases += [Case(A.sqrt.default, (without_nan,)), Case(A.pow.Tensor_Scalar, (without_nan, 0.5))]
    zero, exponents = torch.zeros(4, dtype=dtype), torch.tensor([0.5 + 0.5j, 2, 1 - 1j, 3j + 0.25], dtype=dtype)
    cases.append(Case(A.pow.Tensor_Tensor, (zero, exponents)))
    cases.append(Case(A.pow.Tensor_Scalar, (zero, 2 + 1j)))
    check_all(cases, numbers=(False,))


def zero_or_not_finite(x: torch.Tensor) -> torch.Tensor:
    return (x == 0) | ~x.isfinite()


def same_bits(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.isnan() & y.isnan()) | ((x == y) & (x.signbit() == y.signbit()))


FUNCTIONS = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "exp", "exp2"),
    *("expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "sigmoid", "sgn"),
)
SMALL = torch.tensor([complex(re, im) for re in (1, -1, -0.0, 1e-30, 3) for im in (1e-30, -1e-30, 9)])
"With `GRID`, whole vectors of the CPU: its kernels compute a last part of one by other functions."


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_zeros_and_infinities_have_the_cpus_signs(dtype: torch.dtype) -> None:
    """Where the CPU has the same one in both precisions. A number with a NaN is NaN."""
    z = torch.cat([GRID, SMALL])
    w = z.flip(0)
    calls = {name: lambda x, _, name=name: getattr(torch, name)(x) for name in FUNCTIONS}
    calls |= {f"**{n}": lambda x, _, n=n: x**n for n in (-1, -2, 0.5, -0.5, 4, 1 + 1j)} | {"/": lambda x, y: x / y}
    for name, call in calls.items():
        single, double = call(z, w), call(z.to(torch.complex128), w.to(torch.complex128))
        expected = single if dtype is torch.complex64 else double
        ours = call(z.to(dtype).to("tpu"), w.to(dtype).to("tpu")).cpu()
        wrong = torch.zeros(len(z), dtype=torch.bool)
        for part in ("real", "imag"):
            want, rounded, got = (getattr(x, part) for x in (expected, double.to(torch.complex64), ours))
            agreed = same_bits(getattr(single, part), rounded) & zero_or_not_finite(want)
            wrong |= agreed & ~same_bits(want, got) & (~want.isfinite() | (got == 0))
        wrong &= ~(ours.isnan() & expected.isnan())
        pairs = list(zip(z[wrong].tolist(), ours[wrong].tolist(), expected[wrong].tolist(), strict=True))
        assert not pairs, f"{name}: (argument, result, the CPU's) {pairs}"
