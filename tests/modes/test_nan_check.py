"""The NaN check of debug mode names the op of the first NaN or infinity, with its line and operands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import lazytpu

INF = float("inf")


@pytest.fixture(autouse=True)
def _checked() -> Iterator[None]:
    with lazytpu.mode("debug"), lazytpu.options(nan_check=True):
        yield


def test_first_op_is_named_with_line_and_operands() -> None:
    x = torch.tensor([[1.0, -2.0], [4.0, 0.0]], device="tpu")
    for _ in range(2):
        with pytest.raises(FloatingPointError) as caught:
            x.log()
        line = caught.traceback[0].lineno + 1
        assert str(caught.value) == (
            f"aten.log.default at {__file__}:{line} produced non-finite results (the result: 1 NaN and 1 infinite of 4 "
            "elements) from finite operands:\n  self: float32[2, 2] from -2 to 4, mean 0.75\n"
            "Keep such elements from the op (torch.where, clamp, an epsilon), or compute in a dtype of wider range."
        )
    assert (x + 1).tolist() == [[2.0, -1.0], [5.0, 1.0]]


def test_numbers_are_shown_and_count_as_operands() -> None:
    x = torch.full((3,), 2.0e4, dtype=torch.float16, device="tpu")
    with pytest.raises(FloatingPointError, match=r"3 infinite of 3 .*\n  self: float16\[3\] .*\n  numbers: 8.0"):
        x * 8.0
    assert (x * INF).tolist() == [INF] * 3
    assert torch.full((2,), -INF, device="tpu").tolist() == [-INF] * 2
    assert x.masked_fill(x > 0, -INF).tolist() == [-INF] * 3


def test_non_finite_operands_are_not_reported_again() -> None:
    x = torch.tensor([1.0, INF], device="tpu")
    assert (x - x).isnan().tolist() == [False, True]
    y = torch.tensor([0.0, float("nan"), 3.0], device="tpu")
    assert y.exp().isnan().tolist() == [False, True, False]
    assert y[2:].log().tolist() == pytest.approx([1.0986123])
    with pytest.raises(FloatingPointError, match=r"self: float32\[1\] from 0 to 0"):
        y[:1].log()


def test_writes_through_views_and_lists() -> None:
    x = torch.tensor([1.0, 0.0, float("nan"), 2.0], device="tpu")
    with pytest.raises(FloatingPointError, match="'self': 1 infinite of 2 elements"):
        x[:2].reciprocal_()
    assert x[0] == 1.0
    a, b = torch.ones(2, device="tpu"), torch.zeros(3, device="tpu")
    with pytest.raises(FloatingPointError, match=r"'self': 3 infinite of 3 elements.*\n  self: float32\[2\]"):
        torch._foreach_reciprocal_([a, b])


def test_backward_passes_name_the_line_of_the_forward_op() -> None:
    x = torch.zeros(2, device="tpu", requires_grad=True)
    y = x.sqrt()
    with pytest.raises(FloatingPointError, match=r"\(backward\) produced non-finite results") as caught:
        y.sum().backward()
    assert __file__ in str(caught.value)


def test_finite_training_and_other_modes_raise_nothing() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)).to("tpu")
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(3, 4, device="tpu")).square().mean().backward()
        optimizer.step()
    zero = torch.zeros(2, device="tpu")
    for mode in ("strict", "fused"):
        with lazytpu.mode(mode):
            assert zero.log().tolist() == [-INF] * 2
    with lazytpu.options(nan_check=False):
        assert zero.log().tolist() == [-INF] * 2
