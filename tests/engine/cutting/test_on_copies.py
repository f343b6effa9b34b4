"""A step runs by its usual program on copies of the donated weights that the script still holds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import lazytpu
from lazytpu.engine.cutting import on_copies
from lazytpu.runtime.buffers.buffer import MEMORY

Beside = Callable[[nn.Module], Any]


class Average:
    """An average that begins as a copy of the weights after the first step."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> list[torch.Tensor]:
        if not self.values:
            self.values = [p.detach().clone() for p in model.parameters()]
        else:
            for average, p in zip(self.values, model.parameters(), strict=True):
                average.lerp_(p, 0.25)
        return self.values


class Best:
    """A copy of the weights, taken every other step."""

    def __init__(self) -> None:
        self.calls, self.weights = 0, dict[str, torch.Tensor]()

    def __call__(self, model: nn.Module) -> list[torch.Tensor]:
        self.calls += 1
        if self.calls % 2:
            self.weights = copy.deepcopy(model.state_dict())
        return list(self.weights.values())


class Averaged:
    """torch's AveragedModel, which first copies the weights."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.model: AveragedModel | None = None

    def __call__(self, model: nn.Module) -> list[torch.Tensor]:
        if self.model is None:
            self.model = AveragedModel(model, **self.options)
        self.model.update_parameters(model)
        return [p.detach() for p in self.model.module.parameters()]


def train(device: str, beside: Beside, width: int, steps: int = 5) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the trained weights, and the values kept by `beside`."""

    class Sine(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).sin()

    torch.manual_seed(0)
    model = nn.Sequential(Sine(3, width), nn.Linear(width, 2)).to(device)
    x, kept = torch.arange(6.0).view(2, 3).to(device), list[torch.Tensor]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    lazytpu.sync()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        kept = beside(model)
        loss.item()
    return [p.detach().cpu() for p in model.parameters()], [value.cpu() for value in kept]


def large(before: int) -> int:
    """The number of programs since `before` that contain the model."""
    return sum("lazytpu.sin " in graph.text() for graph in lazytpu.graphs()[before:])


@pytest.mark.parametrize(
    ("make", "width"),
    [(Average, 5), (Best, 6), (Averaged, 7), (lambda: Averaged(multi_avg_fn=get_ema_multi_avg_fn(0.5)), 8)],
    ids=["average", "best", "AveragedModel", "EMA"],
)
def test_kept_weights_need_no_second_program(make: Callable[[], Beside], width: int) -> None:
    before = len(lazytpu.graphs())
    torch.testing.assert_close(train("tpu", make(), width), train("cpu", make(), width))
    assert large(before) == 1


@pytest.mark.parametrize(("limit", "programs"), [(1, 2), (1 << 20, 1)])
def test_repeated_copies_beyond_a_limit_get_a_program(
    limit: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_copies, "BYTES", limit)

    def put_aside(model: nn.Module) -> list[torch.Tensor]:
        return Best()(model)

    before, width = len(lazytpu.graphs()), 10 + programs
    torch.testing.assert_close(train("tpu", put_aside, width), train("cpu", put_aside, width))
    assert large(before) == programs


def test_copies_are_released_after_the_step() -> None:
    train("tpu", Best(), 6)
    lazytpu.sync()
    before = MEMORY.live
    train("tpu", Best(), 6)
    lazytpu.sync()
    assert MEMORY.live == before


def test_interrupted_copy_leaves_the_step_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.arange(4.0, device="tpu")

    def step() -> None:
        for i in range(on_copies.LEAST):
            weight.mul_(0.5).add_(i)

    for _ in range(2):  # the first step creates the weight
        step()
        lazytpu.mark_step()
    before = weight.clone()
    expected = before.cpu()
    step()

    def interrupted(buffers: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(on_copies, "copies_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lazytpu.mark_step()
    for i in range(on_copies.LEAST):
        expected.mul_(0.5).add_(i)
    count = len(lazytpu.graphs())
    torch.testing.assert_close(weight.cpu(), expected)
    assert len(lazytpu.graphs()) == count
