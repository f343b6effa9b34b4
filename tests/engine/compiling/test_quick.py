"""Steps run by a quick program, with less optimisation, until the whole program is compiled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu import wiring
from lazytpu.engine.compiling import costs
from lazytpu.engine.compiling.background import CompileWarning
from lazytpu.engine.compiling.choice import Costs, Unknown
from lazytpu.engine.compiling.estimate import Work
from lazytpu.engine.cutting import on_host
from lazytpu.runtime.cache.programs import KIND
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.errors import CompileError
from tests.engine.conftest import Gate

CHOOSES = True
# Without other traces of a step, since a batch smaller than an earlier one counts as the last of an epoch.
pytestmark = pytest.mark.usefixtures("fresh_traces")
KEYS = ("steps", "hits", "quick", "stepwise", "compiles")


@pytest.fixture(autouse=True)
def never_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many sizes of the same source lines would otherwise run on the host."""
    monkeypatch.setattr(on_host, "BESIDE", inf)


def counted(before: dict[str, Any]) -> dict[str, int]:
    now = lazytpu.metrics()
    return {key: now[key] - before[key] for key in KEYS}


def step(x: torch.Tensor) -> torch.Tensor:
    return (x.cos() * 1.7 + x).square().sum(0)


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def forget_traces() -> None:
    wiring.start().traces.forget_programs()


@pytest.fixture
def slow(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Estimate the whole program as slow and hold it at the gate; quick programs are compiled at once."""
    until(lambda: not wiring.start().background.unfinished())  # wait for compilations of other tests
    monkeypatch.setattr(wiring.start().background, "costs", lambda prepared: Costs(50.0, 1.0))
    with lazytpu.options(background_compile=100):
        yield gate


def test_quick_program_runs_until_the_whole_program_is_compiled(slow: Gate) -> None:
    x = torch.rand(3, 71).to("tpu")
    lazytpu.sync()
    before = lazytpu.metrics()
    results = [step(x).cpu()]
    assert slow.asked == [], "a step that ran once is not compiled again"
    results += [step(x).cpu() for _ in range(2)]
    until(lambda: bool(slow.asked))
    assert counted(before) == {"steps": 3, "hits": 0, "quick": 3, "stepwise": 0, "compiles": 1}
    slow.open()
    results += [step(x).cpu() for _ in range(2)]
    assert counted(before) == {"steps": 5, "hits": 2, "quick": 3, "stepwise": 0, "compiles": 1}
    assert len(slow.asked) == 1
    for result in results:
        torch.testing.assert_close(result, step(x.cpu()))
    explanation = lazytpu.explain()[-1]
    assert (explanation.way, explanation.estimate, explanation.source) == ("quick", 1000.0, "compiled")
    assert "ran with less optimisation first" in str(explanation)


def test_last_batch_runs_by_its_quick_program(slow: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring.start().background, "costs", lambda prepared: Costs(1.5, 0.2, slower=0.6))
    slow.open()
    weight = torch.rand(67, 2, device="tpu", requires_grad=True)

    def train(batch: int) -> torch.Tensor:
        (gradient,) = torch.autograd.grad((torch.rand(batch, 67).to("tpu") @ weight).square().sum(), weight)
        return gradient.cpu()

    for batch in (16, 16, 7):
        train(batch)
    full, last = list(lazytpu.explain())[-2:]
    assert (full.way, last.hint, last.way) == ("whole", "last-batch", "quick")
    asked = len(slow.asked)
    for _ in range(2):
        train(7)
    assert len(slow.asked) == asked, "three quick runs lose 1.8 s"
    train(7)
    until(lambda: len(slow.asked) > asked)


def test_training_continues_from_quick_to_whole_program(slow: Gate) -> None:
    """Donated weights and optimizer states pass from the quick program to the whole program."""

    def train(device: str, between: Callable[[int], None]) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 6)).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        x = torch.rand(5, 6).to(device)
        for i in range(6):
            optimizer.zero_grad()
            (model(x) - x).square().mean().backward()
            optimizer.step()
            between(i)
        return [p.detach().cpu() for p in model.parameters()]

    before = lazytpu.metrics()
    got = train("tpu", lambda i: slow.open() if i == 3 else None)
    assert counted(before)["quick"] >= 2 and counted(before)["hits"] >= 1
    for mine, reference in zip(got, train("cpu", lambda i: None), strict=True):
        torch.testing.assert_close(mine, reference)


@pytest.mark.parametrize("expected", [50.0, 0.3])
def test_second_process_starts_with_the_quick_program_on_disk(
    slow: Gate, monkeypatch: pytest.MonkeyPatch, expected: float
) -> None:
    """Even if the estimate of a less busy machine favours waiting for the whole program."""
    engine = wiring.start()
    x = torch.rand(3, 73 + round(expected)).to("tpu")
    step(x).tolist()
    assert [entry.kind for entry in store().entries()].count(KIND) >= 1
    engine.compiler.programs.clear()
    forget_traces()
    monkeypatch.setattr(engine.background, "costs", engine.compiler.costs)
    monkeypatch.setattr(costs.Estimator, "seconds", lambda self, work, load: expected)
    before = lazytpu.metrics()
    torch.testing.assert_close(step(x).cpu(), step(x.cpu()))
    assert counted(before) == {"steps": 1, "hits": 0, "quick": 1, "stepwise": 0, "compiles": 0}


def test_second_process_loads_the_whole_program(slow: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = wiring.start()
    x = torch.rand(3, 79).to("tpu")
    step(x).tolist()
    step(x).tolist()
    slow.open()
    expected = step(x).cpu()
    engine.compiler.programs.clear()
    forget_traces()
    before = lazytpu.metrics()
    assert torch.equal(step(x).cpu(), expected)
    assert counted(before) == {"steps": 1, "hits": 0, "quick": 0, "stepwise": 0, "compiles": 0}


def test_whole_program_is_compiled_when_the_quick_one_fails(slow: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    background = wiring.start().background

    def failing(prepared: Any) -> Any:
        raise CompileError("step", "INTERNAL: no luck")

    monkeypatch.setattr(background, "quick", failing)
    slow.open()
    x = torch.rand(3, 83).to("tpu")
    before = lazytpu.metrics()
    torch.testing.assert_close(step(x).cpu(), step(x.cpu()))
    assert counted(before)["quick"] == 0


def test_quick_program_stays_with_one_warning_when_the_whole_one_fails(slow: Gate) -> None:
    x = torch.rand(3, 89).to("tpu")
    step(x).tolist()
    slow.error = CompileError("step", "INTERNAL: no luck")
    step(x).tolist()
    until(lambda: bool(slow.asked))
    with pytest.warns(CompileWarning, match=r"goes on with less optimisation.*no luck"):
        slow.open()
    before = lazytpu.metrics()
    for _ in range(3):
        torch.testing.assert_close(step(x).cpu(), step(x.cpu()))
    assert counted(before) == {"steps": 3, "hits": 3, "quick": 0, "stepwise": 0, "compiles": 0}
    assert len(slow.asked) == 1


def test_concurrent_threads_start_one_compilation(slow: Gate) -> None:
    x = torch.rand(3, 97).to("tpu")
    step(x).tolist()
    threads = [threading.Thread(target=lambda: step(x).tolist()) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    until(lambda: bool(slow.asked))
    slow.open()
    assert len(slow.asked) == 1


def test_step_does_not_wait_for_whole_programs_of_other_steps(slow: Gate) -> None:
    """The whole program of a running step waits at the gate; another step is compiled quickly beside it."""
    x = torch.rand(3, 101).to("tpu")
    for _ in range(2):
        step(x).tolist()
    until(lambda: bool(slow.asked))
    torch.testing.assert_close(x.sin().sum(1).cpu(), x.cpu().sin().sum(1))


def test_compiled_ops_run_one_by_one_without_a_wait(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = wiring.start()
    monkeypatch.setattr(engine.background, "costs", lambda prepared: Costs(50.0))
    x = torch.rand(3, 103).to("tpu")
    lazytpu.sync()
    step(x).tolist()  # op by op: the estimate is 50 s, and few ops lack programs
    with lazytpu.options(background_compile=100):
        before, start = lazytpu.metrics(), time.monotonic()
        step(x).tolist()
        assert time.monotonic() - start < 50
    assert counted(before) == {"steps": 1, "hits": 0, "quick": 0, "stepwise": 1, "compiles": 0}
    assert lazytpu.explain()[-1].way == "op by op"


def test_step_of_many_uncompiled_ops_waits_for_its_program(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step waits past its limit of a millisecond, since compiling its ops would take longer."""
    from lazytpu.engine.compiling import choice

    monkeypatch.setattr(choice, "SHORT", 0.0)
    engine = wiring.start()
    monkeypatch.setattr(engine.cutter.chooser.stepwise, "unknown", lambda *_: Unknown(2000, 1.0))
    x = torch.rand(3, 107).to("tpu")
    lazytpu.sync()
    before = lazytpu.metrics()
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.append(step(x).cpu()))
    thread.start()
    until(lambda: bool(gate.asked))
    gate.open()
    thread.join(60)
    torch.testing.assert_close(results[0], step(x.cpu()))
    assert counted(before)["stepwise"] == 0


def test_compiled_ops_need_no_estimate(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = wiring.start()
    x = torch.rand(3, 109).to("tpu")
    lazytpu.sync()
    unknown, asked = engine.cutter.chooser.stepwise.unknown, []
    monkeypatch.setattr(engine.cutter.chooser.stepwise, "unknown", lambda *args: asked.append(args) or unknown(*args))
    step(x).tolist()
    assert unknown(*asked[0]) == Unknown(0, 0.0)
    before = lazytpu.metrics()
    (x.cos() * 1.7 + x).square().tolist()  # another step of the same ops, with one more live result
    missing = unknown(*asked[1])
    assert counted(before)["stepwise"] == 1 and missing == Unknown(0, 0.0)


def test_deterministic_algorithms_rule_out_quick_programs() -> None:
    estimator = costs.Estimator()
    assert estimator.quick(Work(10.0, 1.0), 1.0) < inf
    torch.use_deterministic_algorithms(True)
    try:
        assert estimator.quick(Work(10.0, 1.0), 1.0) == inf
    finally:
        torch.use_deterministic_algorithms(False)


def test_zero_limit_compiles_the_whole_program_at_once(slow: Gate) -> None:
    x = torch.rand(3, 113).to("tpu")
    before = lazytpu.metrics()
    with lazytpu.options(background_compile=0):
        step(x).tolist()
    assert counted(before)["quick"] == 0 and slow.asked == []
