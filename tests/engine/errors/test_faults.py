"""Faults while a step runs: only dependent values are lost, the error names the fault, and the device stays usable.

After each fault the script repeats the failed work, and the tensors are compared with the CPU's.
"""

from __future__ import annotations

import _thread
import contextlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.frontend.recording import miss
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.engine.conftest import Gate
from tests.runtime.failed_arrays import failed_array


class Failing:
    """Make the next run of a program fail: at its launch or, with `later`, while the device computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, later: bool = False):
        self.armed, self.later, self.real = True, later, Program.run
        monkeypatch.setattr(Program, "run", lambda program, arrays: self.run(program, arrays))

    def run(self, program: Program, arrays: Any) -> Any:
        armed, self.armed = self.armed, False
        if armed and not self.later:
            raise RunError(program.name, "INTERNAL: the device is on fire")
        results = self.real(program, arrays)
        return [failed_array(r, "INTERNAL: the device is on fire") for r in results] if armed else results


def test_failed_launch_keeps_the_old_values(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.arange(4.0).to("tpu"), torch.ones(4).to("tpu")
    lazytpu.sync()
    Failing(monkeypatch)
    y = x.exp()
    w.add_(y)
    with pytest.raises(RunError, match="on fire") as caught:
        lazytpu.mark_step()
    assert "test_faults.py" in "".join(caught.value.__notes__)
    assert w.tolist() == [1.0] * 4 and x.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(RunError, match="on fire"):
        y.cpu()
    w.add_(x.exp())
    torch.testing.assert_close(w.cpu(), 1 + torch.arange(4.0).exp())


def test_later_cut_does_not_raise_the_failure_of_an_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host runs ahead of the device, so that a later cut waits for the failed run."""
    x = torch.ones(5).to("tpu")
    lazytpu.sync()
    Failing(monkeypatch, later=True)
    lost = x * 3
    lazytpu.mark_step()
    good = x
    for _ in range(40):
        good = good + 1
        lazytpu.mark_step()
    with pytest.raises(RunError, match="on fire"):
        lazytpu.sync()
    lazytpu.sync()
    assert good.tolist() == [41.0] * 5
    for _ in range(2):
        with pytest.raises(RunError, match="on fire"):
            lost.cpu()
    assert (x + 1).tolist() == [2.0] * 5


def test_only_values_computed_from_a_failed_run_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(5).to("tpu")
    lazytpu.sync()
    Failing(monkeypatch, later=True)
    lost = x * 3
    lazytpu.mark_step()
    with pytest.raises(RunError, match="on fire"):
        (lost + 1).cpu()
    assert (x + 1).tolist() == [2.0] * 5


# -- exceptions of the script inside a step


class Stop(Exception):
    pass


class Refuses(torch.autograd.Function):
    """The identity function, whose gradient raises while `armed`."""

    armed = True

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if Refuses.armed:
            raise Stop
        return grad * 1


class StopsHalfway(torch.optim.SGD):
    """An optimizer that raises between two parameters while `armed`."""

    armed = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for i, p in enumerate(self.param_groups[0]["params"]):
            if i == 1 and self.armed:
                raise Stop
            p.add_(p.grad, alpha=-0.1)


def in_forward(model: nn.Module, armed: Callable[[], bool]) -> None:
    def hook(module: nn.Module, args: Any) -> None:
        if armed():
            raise Stop

    model[2].register_forward_pre_hook(hook)  # pyright: ignore[reportIndexIssue]


def in_a_hook(model: nn.Module, armed: Callable[[], bool]) -> None:
    def hook(grad: torch.Tensor) -> torch.Tensor:
        if armed():
            raise Stop
        return grad * 0.5

    model[0].weight.register_hook(hook)  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("where", ["forward", "hook", "backward", "optimizer"])
@pytest.mark.parametrize("mode", ["fused", "lazy", "strict"])
def test_exception_in_a_training_step_loses_no_values(where: str, mode: str) -> None:
    def train(device: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        Refuses.armed = StopsHalfway.armed = armed = False
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
        optimizer = StopsHalfway(model.parameters(), lr=0.1)
        x = torch.linspace(-1, 1, 6).view(2, 3).to(device)
        {"forward": in_forward, "hook": in_a_hook}.get(where, lambda *_: None)(model, lambda: armed)
        stopped = 0
        for step in range(4):
            armed = step == 1
            Refuses.armed, StopsHalfway.armed = armed and where == "backward", armed and where == "optimizer"
            try:
                optimizer.zero_grad()
                Refuses.apply(model(x)).square().mean().backward()
                optimizer.step()
            except Stop:
                stopped += 1
        assert stopped == 1
        return [p.detach().cpu() for p in model.parameters()]

    with lazytpu.mode(mode):
        got = train("tpu")
    for a, b in zip(got, train("cpu"), strict=True):
        torch.testing.assert_close(a, b)


# -- interrupts


def test_interrupt_undoes_only_the_op_in_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(3.0).to("tpu")
    before = x * 2
    infer = miss.infer

    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(miss, "infer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        torch.lgamma(before)
    monkeypatch.setattr(miss, "infer", infer)
    assert (before + x).tolist() == [0.0, 3.0, 6.0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_writes_leave_their_tensors_unchanged() -> None:
    """Raise at random moments of a loop: an interrupted write leaves its tensor as before the op."""
    chance, armed = random.Random(0), threading.Event()

    def ring(*_: Any) -> None:
        armed.clear()
        raise KeyboardInterrupt

    def work(x: torch.Tensor) -> None:
        while armed.is_set():  # an interrupt inside a destructor is only reported
            y = x.cos() + x
            torch._foreach_mul_([y, y.exp()], 2.0)
            x.add_(1)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        for _ in range(15):
            torch.set_grad_enabled(True)  # no_grad() leaves it off when it is interrupted on its way in or out
            x = torch.zeros(4).to("tpu")
            armed.set()
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.001, 0.01))
                work(x)
            assert (torch.ones(2).to("tpu") * 3).tolist() == [3.0, 3.0]
            count = x.tolist()
            assert count == [count[0]] * 4
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        torch.set_grad_enabled(True)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt, which a process started in the background by a shell ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupted_wait_for_a_program_leaves_the_step_pending(gate: Gate) -> None:
    """The step is pending again; its compilation continues, and the next cut uses the program."""
    x, w = torch.full((7,), 2.0).to("tpu"), torch.zeros(7).to("tpu")
    lazytpu.sync()
    lazytpu.options.background_compile = 120
    real = gate.build

    def interrupting(prepared: Any) -> Any:
        time.sleep(0.5)  # the main thread waits by now
        _thread.interrupt_main()
        return real(prepared)

    def step() -> torch.Tensor:
        y = x.square().sum()
        w.add_(y)
        lazytpu.mark_step()
        return y

    from lazytpu import wiring

    wiring.start().background.build = interrupting
    with pytest.raises(KeyboardInterrupt):
        step()
    gate.open()
    assert w.tolist() == [28.0] * 7
    step()
    assert w.tolist() == [56.0] * 7
    assert len(gate.asked) == 1, "the compilation in progress is used"


def test_interrupted_wait_for_the_device_keeps_launched_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is far ahead of the device, so that the cut waits; its launched results remain valid."""
    x = torch.ones(5).to("tpu")
    lazytpu.sync()
    wait, rung = client.wait, []

    def interrupted(arrays: Any) -> None:
        if len(rung) < 1:
            rung.append(1)
            raise KeyboardInterrupt
        wait(arrays)

    monkeypatch.setattr(client, "wait", interrupted)
    for _ in range(40):
        x.add_(1)
        with contextlib.suppress(KeyboardInterrupt):
            lazytpu.mark_step()
    assert rung == [1]
    assert x.tolist() == [41.0] * 5


# -- threads


def in_thread(function: Callable[[], Any]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit, ValueError])
def test_results_of_a_thread_survive_its_death_inside_an_op(monkeypatch: pytest.MonkeyPatch, error: type) -> None:
    x, results = torch.arange(3.0).to("tpu"), []
    infer = miss.infer

    def dies() -> None:
        results.append(x * 5)
        monkeypatch.setattr(miss, "infer", fails)
        torch.digamma(results[0])

    def fails(*args: Any) -> Any:
        raise error

    in_thread(dies)
    monkeypatch.setattr(miss, "infer", infer)
    assert (results[0] + x).tolist() == [0.0, 6.0, 12.0]


def test_results_and_failures_outlive_their_thread() -> None:
    x, results = torch.arange(3.0).to("tpu"), {}

    def records() -> None:
        results["good"] = x + 1
        results["bad"] = nn.functional.embedding(torch.tensor([9]).to("tpu"), torch.ones(2, 2).to("tpu"))

    in_thread(records)
    with pytest.raises(IndexError, match=r"test_faults\.py"):
        results["bad"].cpu()
    assert results["good"].tolist() == [1.0, 2.0, 3.0]


def test_failure_in_one_thread_keeps_pending_values_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    x, failures = torch.ones(3).to("tpu"), []
    lazytpu.sync()
    mine = x * 7

    def fails() -> None:
        failing = Failing(monkeypatch)
        lost = x.sin()
        try:
            lost.cpu()
        except RunError as error:
            failures.append(error)
        assert not failing.armed

    in_thread(fails)
    assert len(failures) == 1
    assert mine.tolist() == [7.0] * 3
