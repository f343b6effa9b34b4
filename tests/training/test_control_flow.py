"""Training whose path through the model is drawn at random: one program for each path, and no more."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor, nn

import lazytpu

PATHS = list(itertools.product((False, True), repeat=3))


class Branching(nn.Module):
    """Three choices: which activation, a block twice or once, which loss."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, x: Tensor, path: tuple[bool, ...]) -> Tensor:
        smooth, twice, robust = path
        h = self.first(x)
        for _ in range(2 if twice else 1):
            h = self.block(torch.tanh(h) if smooth else torch.relu(h))
        y = self.last(h)
        return y.abs().mean() if robust else y.square().mean()


def train(device: str, steps: int) -> tuple[list[Tensor], list[int]]:
    """The parameters after all steps, and the compilations after each."""
    torch.manual_seed(0)
    model = Branching(12).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(6, 8).to(device)
    choose = random.Random(1)
    compiles: list[int] = []
    for i in range(steps + 1):
        model(x, choose.choice(PATHS) if i else PATHS[0]).backward()
        optimizer.step()
        optimizer.zero_grad()
        lazytpu.mark_step()
        compiles.append(lazytpu.metrics()["compiles"])
    return [p.detach().cpu() for p in model.parameters()], compiles


@pytest.mark.usefixtures("empty_cache")
def test_each_path_compiles_one_program() -> None:
    with lazytpu.options(background_compile=0):
        parameters, compiles = train("tpu", 300)
    assert compiles[-1] - compiles[0] == len(PATHS) - 1, "the first step took one of the paths"
    assert compiles[100] == compiles[-1], "by then every path was seen"
    expected, _ = train("cpu", 300)
    for got, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
