"""Fused mode: a step ends by itself after optimizer.step(); lazy mode: it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.trace import loops

pytestmark = pytest.mark.usefixtures("empty_cache")  # these count compilations


def metric(name: str) -> int:
    return lazytpu.metrics()[name]


class Loop:
    """A model, an optimizer, and the body of a training loop without cuts and reads."""

    def __init__(self, width: int, make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW):
        torch.manual_seed(0)
        self.model = nn.Linear(width, 3).to("tpu")
        self.optimizer = make(self.model.parameters(), lr=0.01)
        self.x = torch.ones(4, width).to("tpu")
        lazytpu.sync()

    def __call__(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(self.x).square().mean().backward()
            self.optimizer.step()


def test_a_loop_without_cuts_is_one_program_a_step() -> None:
    loop = Loop(5)
    loop(3)
    compiles, steps, live = metric("compiles"), metric("steps"), metric("live_bytes")
    loop(6)
    assert metric("compiles") == compiles
    assert metric("steps") == steps + 6
    assert metric("live_bytes") == live


def test_the_program_equals_a_marked_steps() -> None:
    """Gradients freed by zero_grad() between step() and the next op are no results, as before mark_step()."""
    loop = Loop(6)
    for _ in range(3):
        loop(1)
        loop.optimizer.zero_grad()
        lazytpu.mark_step()
    compiles = metric("compiles")
    loop(3)
    lazytpu.sync()
    assert metric("compiles") <= compiles + 1, "the last step's gradients are alive at sync()"
    loop.optimizer.zero_grad()
    compiles = metric("compiles")
    loop(3)
    assert metric("compiles") == compiles


def test_lazy_mode_does_not_end_steps() -> None:
    with lazytpu.options(mode="lazy"):
        loop = Loop(7, torch.optim.SGD)
        steps = metric("steps")
        loop(3)
        assert metric("steps") == steps
        lazytpu.mark_step()
    assert metric("steps") == steps + 1


def test_reading_after_the_step_adds_no_cut() -> None:
    loop = Loop(8, torch.optim.SGD)
    loop(1)
    steps = metric("steps")
    loss = loop.model(loop.x).sum()
    loss.backward()
    loop.optimizer.step()
    loss.item()
    assert metric("steps") == steps + 2, "the step that had ended before, and this one"
    loop.model.weight.detach().cpu()
    assert metric("steps") == steps + 2


def test_an_optimizer_on_the_cpu_ends_nothing() -> None:
    loop = Loop(9, torch.optim.SGD)
    on_host = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(on_host.parameters(), lr=0.1)
    steps = metric("steps")
    y = loop.x * 2
    on_host(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    y = y + 1
    assert metric("steps") == steps
    assert y.tolist() == [[3.0] * 9] * 4


def test_optimizers_that_step_inside_backward_leave_it_whole() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)).to("tpu")
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

    def update(p: torch.Tensor) -> None:
        optimizers[p].step()  # pyright: ignore[reportArgumentType]
        optimizers[p].zero_grad()  # pyright: ignore[reportArgumentType]

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    x = torch.ones(3, 4, device="tpu")
    lazytpu.sync()
    steps = metric("steps")
    model(x).sum().backward()
    lazytpu.mark_step()
    assert metric("steps") == steps + 1


@pytest.mark.parametrize("closure", [False, True])
def test_training_agrees_with_the_cpu(closure: bool) -> None:
    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(device)
        optimizer = (
            torch.optim.LBFGS(model.parameters(), max_iter=2) if closure else torch.optim.Adam(model.parameters())
        )
        x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device)
        average = [p.detach().clone() for p in model.parameters()]

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            value = model(x).square().sum()
            value.backward()
            return value

        for _ in range(4):
            optimizer.step(loss)
            for a, p in zip(average, model.parameters(), strict=True):  # recorded after the step's end
                a.lerp_(p.detach(), 0.5)
        return [a.cpu() for a in average]

    for got, expected in zip(train("tpu"), train("cpu"), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


def test_random_numbers_do_not_depend_on_where_steps_end() -> None:
    def draws(mode: str) -> list[list[float]]:
        with lazytpu.options(mode=mode):
            loop = Loop(3, torch.optim.SGD)
            torch.manual_seed(4)
            drawn = []
            for _ in range(3):
                drawn.append(torch.rand(2, device="tpu"))
                loop(1)
            return [d.tolist() for d in drawn]

    assert draws("fused") == draws("lazy")


def by_hand(w: torch.Tensor, x: torch.Tensor, steps: int) -> None:
    """Gradient descent without an optimizer."""
    for _ in range(steps):
        (x @ w).square().mean().backward()
        with torch.no_grad():
            assert w.grad is not None
            w -= 0.1 * w.grad
        w.grad = None


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_loop_over_a_model_without_a_graph_is_cut_where_it_repeats(
    monkeypatch: pytest.MonkeyPatch, off: type[torch.no_grad]
) -> None:
    """A sampler: 60 iterations are not one program of 360 records, and from the third program on all are hits."""
    monkeypatch.setattr(loops, "FIRST", 64)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.SiLU(), torch.nn.Linear(4, 3))
    x = torch.randn(2, 3)

    def sample(model: torch.nn.Module, x: torch.Tensor, rounds: int) -> torch.Tensor:
        with off():
            for _ in range(rounds):
                x = x * 0.9 + model(x) * 0.3
        return x

    with off():
        expected = sample(model, x, 200)
    model, y = model.to("tpu"), x.to("tpu")
    lazytpu.sync()
    steps = metric("steps")
    y = sample(model, y, 60)
    assert metric("steps") > steps + 3
    compiles, steps = metric("compiles"), metric("steps")
    y = sample(model, y, 140)
    assert metric("steps") > steps + 8
    assert metric("compiles") <= compiles + 1, "one where the value that it began with is alive"
    torch.testing.assert_close(y.cpu(), expected)


def test_layers_are_not_cut_apart_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "FIRST", 16)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(40))).to("tpu")
    x = torch.ones(2, 3).to("tpu")
    lazytpu.sync()
    steps = metric("steps")
    with torch.no_grad():
        y = model(x)
    lazytpu.mark_step()
    assert metric("steps") == steps + 1, str(lazytpu.explain_cut())
    assert y.shape == (2, 3)


def test_a_loop_without_an_optimizer_is_cut_where_it_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "FIRST", 64)
    w, x = torch.ones(3, 2, device="tpu", requires_grad=True), torch.ones(4, 3).to("tpu")
    lazytpu.sync()
    steps = metric("steps")
    by_hand(w, x, 60)
    assert metric("steps") > steps + 3
    compiles, steps = metric("compiles"), metric("steps")
    by_hand(w, x, 60)
    assert metric("compiles") == compiles
    assert metric("steps") > steps + 3
    expected = torch.ones(3, 2, requires_grad=True)
    by_hand(expected, torch.ones(4, 3), 120)
    torch.testing.assert_close(w.detach().cpu(), expected.detach())
    with lazytpu.options(mode="lazy"):
        parameter = torch.ones(5, 2, device="tpu", requires_grad=True)
        steps = metric("steps")
        by_hand(parameter, torch.ones(4, 5, device="tpu"), 30)
        assert metric("steps") == steps
        lazytpu.mark_step()
