"""Fake quantization by a moving average of the extremes, against torch's CPU."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch

A: Any = torch.ops.aten
RANGES = [(0, 255), (-128, 127), (-8, 7), (1, 3)]


Pair = tuple[float, float]


def trained(
    device: str, ends: Pair, count: int, switches: Pair, settings: tuple[Any, ...], size: float
) -> list[torch.Tensor]:
    """The numbers and masks of three steps, and the state after them."""
    state = [torch.full((count,), end, device=device) for end in ends]
    state += [torch.full((count,), 0.5, device=device), torch.full((count,), 3, dtype=torch.int32, device=device)]
    on, results = [torch.tensor([n], device=device) for n in switches], list[torch.Tensor]()
    for step in range(3):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)) * size
        results += A._fused_moving_avg_obs_fq_helper(x.to(device), *on, *state, 0.3, *settings)
    return [x.cpu() for x in (*results, *state)]


def same(*arguments: Any) -> None:
    for ours, expected in zip(trained("tpu", *arguments), trained("cpu", *arguments), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bounds", RANGES, ids=str)
@pytest.mark.parametrize("row", [False, True])
def test_steps_of_training(symmetric: bool, bounds: tuple[int, int], row: bool) -> None:
    """From the first observation, with tiny numbers, whose scale is raised, and huge ones."""
    settings = (*bounds, 0 if row else -1, row, symmetric)
    for size in (1.0, 1e-6, 1e5):
        same((inf, -inf), 4 if row else 1, (1, 1), settings, size)


@pytest.mark.parametrize("switches", [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("row", [False, True])
def test_switches(switches: tuple[int, int], row: bool) -> None:
    same((-1.0, 0.75), 4 if row else 1, switches, (0, 255, 0 if row else -1, row, False), 1.0)


ENDS = [0.0, 1.0, 0.3, 1e-3, 1e-7, 123.4, 3e38]


def parameters(device: str, low: torch.Tensor, high: torch.Tensor, settings: tuple[Any, ...]) -> list[torch.Tensor]:
    """The scales and the zero points of channels with these extremes."""
    state = [low.clone(), high.clone(), torch.ones_like(low), torch.zeros_like(low, dtype=torch.int32)]
    state, on = [x.to(device) for x in state], [torch.tensor([n], device=device) for n in (0, 1)]
    A._fused_moving_avg_obs_fq_helper(torch.ones(len(low), 2, device=device), *on, *state, 0.1, *settings)
    return [x.cpu() for x in state[2:]]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bounds", RANGES, ids=str)
def test_parameters_of_ranges_have_the_same_bits(symmetric: bool, bounds: tuple[int, int]) -> None:
    ends = torch.tensor([*ENDS, *[-x for x in ENDS]])
    low, high = (x.flatten().contiguous() for x in torch.meshgrid(ends, ends, indexing="ij"))
    settings = (*bounds, 0, True, symmetric)
    for ours, expected in zip(*(parameters(d, low, high, settings) for d in ("tpu", "cpu")), strict=True):
        assert ours.equal(expected)


@pytest.mark.parametrize("end", [inf, nan])
def test_ranges_without_an_end_are_refused(end: float) -> None:
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="`zero_point` must be between"):
            parameters(device, torch.tensor([-1.0]), torch.tensor([end]), (0, 255, 0, True, False))


def test_empty_averages_grow_to_the_channels() -> None:
    same((inf, -inf), 0, (1, 1), (0, 255, 0, True, False), 1.0)


def test_gradients_are_masked() -> None:
    found: list[torch.Tensor] = []
    for device in ("cpu", "tpu"):
        x = torch.linspace(-3, 3, 12).to(device).requires_grad_()
        on = torch.tensor([0], device=device), torch.tensor([1], device=device)
        state = [torch.tensor([n], device=device) for n in (-1.0, 2.0, 1.0)]
        zero = torch.tensor([0], dtype=torch.int32, device=device)
        torch.fused_moving_avg_obs_fake_quant(x, *on, *state, zero, 0.1, 0, 255, -1).sum().backward()
        found.append(x.grad.cpu())  # pyright: ignore[reportOptionalMemberAccess]
    assert found[0].equal(found[1])


@pytest.mark.parametrize(
    ("dtype", "rest"),
    [
        (torch.float32, (0, 255, 2)),
        (torch.float32, (255, 0, 0)),
        (torch.float32, (0, 255, 1, True)),
        (torch.float32, (0, 255, 0, True)),
        (torch.float64, (0, 255, 0)),
    ],
    ids=str,
)
def test_refusals(dtype: torch.dtype, rest: tuple[Any, ...]) -> None:
    messages: list[str] = []
    for device in ("cpu", "tpu"):
        x, on = torch.ones(2, 3, device=device, dtype=dtype), torch.tensor([1], device=device)
        state = [torch.ones(1, device=device) for _ in range(3)]
        zero = torch.zeros(1, dtype=torch.int32, device=device)
        with pytest.raises(RuntimeError) as error:
            torch.fused_moving_avg_obs_fake_quant(x, on, on, *state, zero, 0.1, *rest)
        messages.append(str(error.value).partition("\n")[0])
    assert messages[0] == messages[1]
