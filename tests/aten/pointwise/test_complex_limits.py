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
