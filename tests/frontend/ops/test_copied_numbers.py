"""`copy_` of Python numbers and of duals, between the device and the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

TARGETS: dict[str, Callable[[str], Tensor]] = {
    "whole": lambda d: torch.zeros(3, device=d),
    "row": lambda d: torch.zeros(2, 3, device=d)[1],
    "integers": lambda d: torch.zeros(3, dtype=torch.int32, device=d),
    "complex": lambda d: torch.zeros(3, dtype=torch.complex64, device=d),
    "negated": lambda d: torch.zeros(3, dtype=torch.complex64, device=d).conj().imag,
    "nothing": lambda d: torch.zeros(0, device=d),
}


NUMBERS = (float("inf"), 3, True, 2 + 1j)
CASES = [(t, n) for t in TARGETS for n in NUMBERS if t != "integers" or n != float("inf")]
"Infinity as an integer depends on the processor."


@pytest.mark.parametrize(("target", "number"), CASES)
def test_numbers(target: str, number: complex) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the imaginary part is discarded
        expected, got = (TARGETS[target](d).copy_(number) for d in ("cpu", "tpu"))  # pyright: ignore[reportArgumentType]
    assert torch.equal(got.cpu().resolve_neg(), expected.resolve_neg())


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # raised at the first use of forward_ad
@pytest.mark.parametrize("source", ["cpu", "tpu"])
@pytest.mark.parametrize("target", ["cpu", "tpu"])
def test_duals(source: str, target: str) -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.arange(3.0).to(source), torch.full((3,), 2.0).to(source))
        target_tensor, small = torch.zeros(3, device=target), torch.zeros(2, 3, device=target)
        for copy in (target_tensor.copy_(dual), dual.to(target), small[1].copy_(dual)):
            value, tangent = forward_ad.unpack_dual(copy)
            assert value.tolist() == [0, 1, 2]
            assert tangent is not None
            assert tangent.tolist() == [2, 2, 2]
            assert tangent.device.type == target
        tangent = forward_ad.unpack_dual(small).tangent
        assert tangent is not None
        assert tangent.tolist() == [[0, 0, 0], [2, 2, 2]]
