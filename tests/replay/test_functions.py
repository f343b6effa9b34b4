"""What can be a step function, and what one is: decorators, methods, copies, modules."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import nn
from worlds import batch, model

import lazytpu


@lazytpu.capture
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Twice x."""
    return x * 2


def test_a_decorated_function_keeps_its_name():
    assert doubled.__name__ == "doubled" and doubled.__doc__ == "Twice x."
    assert "lazytpu.step of doubled" in repr(doubled)
    assert pickle.loads(pickle.dumps(doubled)) is doubled


class Trainer:
    def __init__(self, lr: float):
        self.net = model()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=lr)

    @lazytpu.capture(calls=2)
    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.net(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def test_each_instance_has_captures_of_its_own():
    fast, slow = Trainer(0.1), Trainer(0.0)
    found = [(fast.step(*batch(0)).item(), slow.step(*batch(0)).item()) for _ in range(8)]
    assert fast.step is fast.step and fast.step is not slow.step
    assert fast.step.replays == 5 and slow.step.replays == 5  # type: ignore[attr-defined]
    assert len({a for a, _ in found}) == 8 and len({b for _, b in found}) == 1


def test_copies_of_an_instance():
    first = Trainer(0.1)
    for _ in range(6):
        first.step(*batch(0))
    other: Any = copy.deepcopy(first)
    before = [p.cpu() for p in first.net.parameters()]
    for _ in range(6):
        other.step(*batch(1))
    assert other.step is not first.step and other.step.replays >= 3
    assert all(torch.equal(a, p.cpu()) for a, p in zip(before, first.net.parameters()))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = 1.0

    @lazytpu.capture
    def predict(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.inner(x).relu() * self.scale


def test_a_method_of_a_module():
    net = Net().to("tpu")
    x, _ = batch(0)
    for scale in (1.0, 2.0):
        net.scale = scale
        for _ in range(5):
            found = net.predict(x)
    assert torch.equal(found.cpu(), (net.inner(x).relu() * 2).detach().cpu())
    assert net.predict.replays == 4  # type: ignore[attr-defined]
    assert set(net.state_dict()) == {"inner.weight", "inner.bias"}
    other = pickle.loads(pickle.dumps(net.to("cpu")))
    assert torch.equal(other.inner.weight, net.inner.weight) and other.predict.captures == 0


def test_a_module_is_a_step_function():
    net = model(nn.ReLU()).eval()
    step = lazytpu.step(net)
    x, _ = batch(0)
    with torch.no_grad():
        for _ in range(5):
            found = step(x)
        assert torch.equal(found.cpu(), net(x).cpu())
    assert step.replays == 2


def test_forgetting():
    captured = lazytpu.step(lambda x: x + 1)
    for i in range(5):
        captured(batch(i)[0])
    assert captured.captures == 1
    captured.forget()
    assert captured.captures == 0
    for i in range(5):
        captured(batch(i)[0])
    assert captured.replays == 4


def test_a_captured_step_is_one_run_and_no_records():
    captured = lazytpu.step(lambda x: (x + 1).sum())
    x, _ = batch(0)
    for _ in range(5):
        captured(x)
    lazytpu.sync()
    lazytpu.reset_metrics()
    captured(x)
    found = lazytpu.metrics()
    assert (found["replays"], found["steps"], found["hits"], found["records"], found["compiles"]) == (1, 1, 1, 0, 0)


def test_memory_stays_what_it_was():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    captured = lazytpu.step(step)
    x, y = batch(0)
    alive: set[int] = set()
    for i in range(40):
        captured(x, y)
        if i > 5:
            alive.add(lazytpu.metrics()["live_bytes"])
    assert len(alive) == 1 and captured.replays > 30


def test_a_tensor_that_is_assigned_at_each_call():
    class Recurrent:
        def __init__(self) -> None:
            self.hidden = torch.zeros(3, device="tpu")

        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.hidden = (self.hidden * 0.5 + x).detach()
            return self.hidden.sum()

    plain, captured = Recurrent(), Recurrent()
    step = lazytpu.step(captured.step)
    kept: list[torch.Tensor] = []
    for i in range(10):
        x = torch.full((3,), float(i), device="tpu")
        assert plain.step(x).item() == step(x).item()
        kept.append(captured.hidden)
    assert step.replays == 7
    assert [t.tolist() for t in kept[:2]] == [[0.0] * 3, [1.0] * 3]  # as assigned: later calls leave them alone
    captured.hidden = torch.ones(3, device="tpu")
    plain.hidden = torch.ones(3, device="tpu")
    for i in range(6):
        x = torch.full((3,), float(i), device="tpu")
        assert plain.step(x).item() == step(x).item()
