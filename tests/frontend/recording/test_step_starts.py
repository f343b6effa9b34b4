"""Fused mode: what prepares data and weights is no part of the step's program."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lazytpu
from lazytpu.trace.cuts import BEGIN, BLOCK

pytestmark = pytest.mark.usefixtures("empty_cache")  # these count what is compiled


def compiles() -> int:
    return lazytpu.metrics()["compiles"]


class Scale(nn.Module):
    """A transform of the data: a module without parameters."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - 0.5) / 0.25


def train(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_initialisation_does_not_leak_into_the_first_step() -> None:
    torch.manual_seed(0)
    with torch.device("tpu"):
        model = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))
        x = torch.randn(4, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, x, optimizer)
    optimizer.zero_grad()
    lazytpu.mark_step()
    before = compiles()
    train(model, x, optimizer)
    optimizer.zero_grad()
    lazytpu.mark_step()
    assert compiles() == before, "the first step's program has no weights to make, so it is the second's, too"
    names = [graph.text() for graph in lazytpu.graphs()[-2:]]
    assert "random_bits" in names[0]
    assert "random_bits" not in names[1]


@pytest.mark.parametrize("transform", [lambda x: (x - 0.5) / 0.25, Scale()], ids=["ops", "module"])
def test_paths_of_the_data_do_not_multiply_the_step(transform: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Linear(5, 5).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = torch.rand(4, 5)

    def prepared(kind: int) -> Tensor:
        x = source.to("tpu")
        if kind & 1:
            x = x.flip(1)
        if kind & 2:
            x = x * 1.5 + 0.25
        return transform(x)

    train(model, prepared(0), optimizer)
    lazytpu.sync()
    started = compiles()
    for kind in (1, 2, 3, 0, 3, 2, 1, 0):
        train(model, prepared(kind), optimizer)
    lazytpu.sync()
    # Three more ways to prepare a batch; and in the loop gradients die before the cut, in the last step before sync()
    # they do not: one more program of the step at most.
    assert compiles() - started <= 4
    assert any(cut.cause == BEGIN for cut in lazytpu.explain_cut(20))


def test_what_a_forward_makes_before_it_touches_a_weight_belongs_to_the_step() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(9, 4))

        def forward(self, x: Tensor) -> Tensor:
            places = torch.arange(x.shape[0], device=x.device) + 1
            return self.table[places] * x

    model = Model().to("tpu")
    x = torch.ones(3, 4).to("tpu")
    with torch.no_grad():
        for _ in range(2):
            lazytpu.sync()
            before = len(lazytpu.explain_cut(100))
            y = model(x)
            assert len(lazytpu.explain_cut(100)) == before
    assert y.tolist() == [[1.0] * 4] * 3


def test_the_results_are_those_of_lazy_mode() -> None:
    results: list[list[Tensor]] = []
    for mode in ("fused", "lazy"):
        torch.manual_seed(1)
        model = nn.Linear(3, 2).to("tpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with lazytpu.mode(mode):
            for i in range(4):
                x = torch.rand(5, 3, device="tpu") + i
                train(model, x.roll(i, 0), optimizer)
            results.append([p.detach().cpu() for p in model.parameters()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_loop_of_plain_ops_is_cut_where_it_repeats() -> None:
    x = torch.ones(4).to("tpu")

    def iterate(y: Tensor, times: int) -> Tensor:
        for _ in range(times):
            y = (y * 0.5 + x).abs() - 0.0
        return y

    lazytpu.sync()
    y = iterate(x, 400)
    steps, before = lazytpu.metrics()["steps"], compiles()
    y = iterate(y, 800)
    assert lazytpu.metrics()["steps"] - steps >= 5, "a trace is not much longer than what is needed to see a loop"
    assert compiles() <= before + 1, "the caller holds the y that it gave: one result more in the trace that made it"
    assert lazytpu.explain_cut()[-1].cause == BLOCK
    torch.testing.assert_close(y.cpu(), torch.full((4,), 2.0))
