"""Dtypes that the device lacks are rejected at the call, and recorded ops stay intact."""

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


def test_the_cpu_is_not_called_where_it_would_crash() -> None:
    """Its backward reads the gradient of a bag that does not exist."""
    table = torch.ones(20, 3, device="tpu", requires_grad=True)
    offsets = torch.empty(0, dtype=torch.int64, device="tpu")
    bags = torch.nn.functional.embedding_bag(torch.arange(4, device="tpu"), table, offsets, mode="sum")
    bags.sum().backward()
    assert bags.shape == (0, 3) and table.grad is not None and table.grad.sum().item() == 0
