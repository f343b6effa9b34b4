"""Dtypes that the device does not have are refused at the call, and what was recorded stays whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

MAKES: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(2, dtype=torch.complex32, device="tpu"),
    "full": lambda: torch.full((2,), 1, dtype=torch.complex32, device="tpu"),
    "to": lambda: torch.zeros(2, dtype=torch.complex32).to("tpu"),
    "chalf": lambda: torch.ones(2, device="tpu").chalf(),
    "a promotion": lambda: torch.ones(2, dtype=torch.float16, device="tpu") * 1j,
    "a view": lambda: torch.view_as_complex(torch.ones(2, 2, dtype=torch.float16, device="tpu")) * 2,
    "four bits": lambda: torch.empty(2, dtype=torch.float4_e2m1fn_x2, device="tpu"),
}


@pytest.mark.parametrize("name", MAKES, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_refused_at_the_call(name: str) -> None:
    before = torch.ones(2, device="tpu") + 1
    with pytest.raises(NotImplementedError, match=r"is not supported on 'tpu'; supported are torch\.float16"):
        MAKES[name]()
    assert (before + 1).tolist() == [3, 3]
