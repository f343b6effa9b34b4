"""What cannot be captured runs as usual, with one warning that says why; `strict` raises."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from worlds import batch, model

import lazytpu
from lazytpu.replay.refusal import CaptureWarning


class Trainer:
    def __init__(self) -> None:
        self.net = model()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.count = 0
        self.losses: list[Any] = []
        self.last: Any = None

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(x), y)

    def reads(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(x, y)
        if loss.item() > 1e9:
            loss = loss * 2
        return loss.detach()

    def reads_a_result_of_the_last_call(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scale = 0.5 if self.net[0].bias[0] > 1e9 else 1.0  # pyright: ignore[reportIndexIssue]
        return (self.loss(x, y) * scale).detach()

    def counts(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.loss(x, y).detach()

    def appends(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = self.loss(x, y).detach()
        self.losses.append(loss)
        return loss

    def uploads(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight = torch.tensor([1.0, 2.0, 3.0]).to("tpu")
        return (self.loss(x, y) * weight).detach()

    def keeps_the_graph(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(x, y)

    def draws_on_the_host(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.loss(x, y) * random.random()).detach()

    def seeds(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return (self.loss(x, y) + torch.rand((), device="tpu")).detach()

    def sets_the_rate(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.param_groups[0]["lr"] *= 0.9
        self.optimizer.step()
        return loss.detach()

    def returns_a_number(self, x: torch.Tensor, y: torch.Tensor) -> int:
        self.loss(x, y)
        return random.getrandbits(0) + 3 + len(self.losses)

    def does_nothing(self, x: torch.Tensor, y: torch.Tensor) -> None:
        return None


REASONS = {
    "reads": "reads a value on the host .*test_refusals.py:",
    "reads_a_result_of_the_last_call": "reads a value on the host .*test_refusals.py:",
    "counts": "changes .*count from . to ., which only its Python does",
    "appends": "not where capture can see it|changes the length of",
    "uploads": "aten.mul.Tensor at .*test_refusals.py:.* made in the call from data of the host",
    "keeps_the_graph": "still alive after the call.*detach",
    "draws_on_the_host": "random numbers on the CPU",
    "seeds": "seeds a generator|seeded in the call|random numbers on the CPU",
    "sets_the_rate": "sets an optimizer's hyperparameters",
    "does_nothing": "records nothing on tpu",
}


@pytest.mark.parametrize("name", REASONS)
def test_refusals_are_told_once(name: str):
    plain, trainer = Trainer(), Trainer()
    step: Callable[..., Any] = lazytpu.step(getattr(trainer, name))
    random.seed(0)
    expected = [getattr(plain, name)(*batch(i)) for i in range(6)]
    random.seed(0)
    with pytest.warns(CaptureWarning, match=f"runs uncaptured: .*({REASONS[name]})") as told:
        found = [step(*batch(i)) for i in range(6)]
    assert len(told) == 1 and step.captures == 0 and step.reason  # pyright: ignore[reportFunctionMemberAccess]
    if name != "does_nothing":
        torch.testing.assert_close([t.detach().cpu() for t in found], [t.detach().cpu() for t in expected])
    assert trainer.count == plain.count and len(trainer.losses) == len(plain.losses)


def test_strict_raises():
    trainer = Trainer()
    step = lazytpu.step(trainer.reads, strict=True)
    for i in range(2):
        step(*batch(i))
    with pytest.raises(RuntimeError, match="cannot be captured: it reads a value on the host"):
        step(*batch(2))
    assert step(*batch(0)).item() > 0  # and works on, uncaptured


def test_calls_that_are_never_alike():
    trainer = Trainer()

    def calls() -> None:
        for i in range(20):
            trainer.count = i
            step(*batch(i))

    step: Any = lazytpu.step(lambda x, y: trainer.loss(x, y).detach() * trainer.count)
    with pytest.warns(CaptureWarning, match="a Python value that it reads, or which gradients are there, is different"):
        calls()


def test_different_ops_at_each_call():
    powers = iter(range(2, 100))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[: next(powers) % 6].sum()

    captured = lazytpu.step(step)
    with pytest.warns(CaptureWarning, match="it records aten.* in one call, and aten.* in another"):
        list(map(captured, *zip(*map(batch, range(20)))))


def test_a_read_in_the_first_calls_only():
    """What happens once, as many initialisations do, does not matter."""
    done: list[bool] = []

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if not done:
            done.append(x.sum().item() > 0)
        return x * 2

    captured = lazytpu.step(step)
    for i in range(8):
        x, y = batch(i)
        assert torch.equal(captured(x, y).cpu(), x.cpu() * 2)
    assert captured.replays == 4


def test_exceptions_leave_everything_valid():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    fail: list[int] = []

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        if fail:
            raise KeyError(f"call {fail.pop()}")
        optimizer.step()
        return loss.detach()

    captured = lazytpu.step(step)
    fail.append(0)
    with pytest.raises(KeyError, match="call 0"):
        captured(*batch(0))
    for i in range(6):
        captured(*batch(i))
    assert captured.replays
    before = [p.cpu() for p in net.parameters()]
    fail.append(1)
    with pytest.raises(KeyError, match="call 1"):
        captured(*batch(1))
    assert all(torch.equal(a, p.cpu()) for a, p in zip(before, net.parameters()))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        captured(torch.ones(2, 5, device="tpu"), batch(0)[1])
    replays = captured.replays
    for i in range(6):
        assert captured(*batch(i)).item() > 0
    assert captured.replays > replays


def test_a_run_that_fails(monkeypatch: pytest.MonkeyPatch):
    """Before anything is donated: the parameters are as they were, and the next call is right."""
    from lazytpu.runtime.program import Program

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    captured = lazytpu.step(step)
    for i in range(6):
        captured(*batch(i))
    before = [p.cpu() for p in net.parameters()]
    with monkeypatch.context() as patch:
        patch.setattr(Program, "run", lambda self, arrays: (_ for _ in ()).throw(RuntimeError("injected")))
        with pytest.raises(RuntimeError, match="injected"):
            captured(*batch(0))
    assert all(torch.equal(a, p.cpu()) for a, p in zip(before, net.parameters()))
    gc.collect()  # the error's traceback, which held the values of the call
    replays = captured.replays
    captured(*batch(0))
    assert captured.replays == replays + 1, captured.reason
    assert not any(torch.equal(a, p.cpu()) for a, p in zip(before, net.parameters()))


@pytest.mark.parametrize("random_part", [False, True])
def test_reads_of_constants(random_part: bool):
    """A value that the code alone decides may be read; one that depends on random numbers may not."""
    limit = 3

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[0], device="tpu") * limit
        if random_part:
            positions = positions + torch.rand(x.shape[0], device="tpu")
        positions[0] = 0
        if (positions.diff() >= 3).all():
            x = x * 2
        return x * positions[1]

    captured = lazytpu.step(step)
    if random_part:
        with pytest.warns(CaptureWarning, match="reads a value on the host"):
            list(map(captured, *zip(*map(batch, range(5)))))
        return
    for limit in (3, 2, 3):
        for i in range(6):
            x, y = batch(i)
            assert torch.equal(captured(x, y).cpu(), x.cpu() * (6 if limit == 3 else 2))
    assert captured.replays == 3 + 3 + 6


def test_calls_that_cannot_be_captured_beside_those_that_can():
    """Evaluation reads its loss on the host; training stays captured, and only one warning comes."""
    net = model(nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = nn.functional.mse_loss(net(x), y)
        if not net.training:
            return loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def calls() -> None:
        for i in range(40):
            net.train(i % 4 > 0)
            assert isinstance(captured(*batch(i)), torch.Tensor if i % 4 else float)

    captured: Any = lazytpu.step(step)
    with pytest.warns(CaptureWarning, match="runs uncaptured: it reads a value on the host") as told:
        calls()
    assert len(told) == 1 and captured.replays > 15 and captured.captures == 1


def test_an_optimizer_that_no_name_leads_to():
    class Hidden:
        def __init__(self) -> None:
            self.net = model()
            self.found = torch.optim.AdamW(self.net.parameters(), lr=0.1)

        def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer = getattr(self, "fou" + "nd")
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.net(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

    plain, hidden = Hidden(), Hidden()
    captured = lazytpu.step(hidden.step)
    for i in range(10):
        assert plain.step(*batch(i)).item() == pytest.approx(captured(*batch(i)).item(), rel=1e-5)
    assert captured.replays >= 4


def test_results_that_share_a_value_with_a_parameter():
    """Kept by the caller, they stay what they were; a copy made between two calls makes the second one be recorded."""
    net = model()

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(0.5)
        return next(net.parameters()).detach().clone()

    captured = lazytpu.step(step)
    kept = [captured(batch(0)[0]) for _ in range(7)]
    for older, newer in itertools.pairwise(kept):
        assert torch.equal(older.cpu() * 0.5, newer.cpu())
    assert captured.replays == 4
    copied = next(reversed(list(net.parameters()))).detach().clone()
    before = copied.cpu()
    captured(batch(0)[0])
    assert "shares its value" in str(captured.reason) and torch.equal(copied.cpu(), before)
    captured(batch(0)[0])
    assert captured.replays == 5
