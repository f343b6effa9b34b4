"""The first check that holds decides how a cut runs, and each strategy runs it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu import wiring
from lazytpu.engine.cutting import chooser as module
from lazytpu.engine.cutting import on_copies, on_host
from lazytpu.engine.cutting.chooser import Chooser
from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.cutting.order import Order
from lazytpu.engine.cutting.pieces import Pieces
from lazytpu.engine.cutting.strategies import Host, Launch, LaunchSized, Meanwhile, Strategy
from lazytpu.engine.launching.sized import AtSizes
from lazytpu.runtime.errors import OutOfMemory
from lazytpu.trace.pending import Trace
from lazytpu.trace.trie import CutPlan
from tests.engine.conftest import Gate


def program(name: str) -> Any:
    return SimpleNamespace(name=name, binding=SimpleNamespace(checks=()))


def choice(monkeypatch: pytest.MonkeyPatch, holds: int, awaits: bool = False) -> Strategy | None:
    """Choose a strategy for a cut that passes check number `holds` and all later checks."""
    chooser: Any = object.__new__(Chooser)
    strategy = "a strategy" if holds <= 4 else None
    chooser.on_host = SimpleNamespace(way=lambda plan, trace: strategy)
    copying = (program("that takes copies"), {0: "a copy"}) if holds <= 5 else None
    monkeypatch.setattr(module, "on_copies", lambda cut: copying)
    monkeypatch.setattr(module, "fitting", lambda *_: program("that fits") if holds <= 6 else None)
    chooser.stepwise = SimpleNamespace(unknown=lambda cut: None)
    chooser.windows = SimpleNamespace(choose=lambda cut, pieces, agreement: pieces)
    chooser.for_sizes = SimpleNamespace(program=lambda *_: None)
    chooser.background = SimpleNamespace(program=lambda *_: (program("of the background"), False))
    chooser.compiler = SimpleNamespace(prepare=lambda *_: None, compile=lambda *_: program("compiled here"))
    trace = Trace(SimpleNamespace(depth=1), 1, [], [], [], 0.0, "fused")  # type: ignore[arg-type]
    live = () if holds <= 2 else (1,)
    plan = CutPlan((), (1,), collective=holds <= 1)
    if holds <= 3:
        plan.programs[live, ()] = program("of this cut")
    plan.steps[live, ()] = []
    order = Order()
    monkeypatch.setattr(order, "awaits", lambda trace: awaits)
    return chooser.choose(Cut(plan, trace, [], live, ()), order)


def test_first_passing_check_decides_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(choice(monkeypatch, 1), Pieces)
    assert choice(monkeypatch, 2) is None
    hit, host, copying, fits, missed = (choice(monkeypatch, holds) for holds in (3, 4, 5, 6, 7))
    assert isinstance(hit, Launch) and (hit.program.name, hit.hit) == ("of this cut", True)  # type: ignore[attr-defined]
    assert isinstance(host, Host)
    assert isinstance(copying, Launch) and copying.copies == {0: "a copy"}
    assert isinstance(fits, Launch) and (fits.program.name, fits.hit) == ("that fits", True)  # type: ignore[attr-defined]
    assert isinstance(missed, Launch) and missed.hit is False


def test_cut_with_awaited_inputs_runs_by_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    for holds in (4, 5):
        chosen = choice(monkeypatch, holds, awaits=True)
        assert isinstance(chosen, Launch)
        assert chosen.program.name == "that fits"  # type: ignore[attr-defined]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The strategies chosen for the cuts of a test, in order."""
    chooser = wiring.start().cutter.chooser
    choose, strategies = chooser.choose, list[Any]()

    def noting(*arguments: Any) -> Any:
        strategies.append(choose(*arguments))
        return strategies[-1]

    with monkeypatch.context() as patch, lazytpu.mode("fused"):
        lazytpu.sync()
        patch.setattr(chooser, "choose", noting)
        yield strategies


def test_repeated_cut_launches_its_program(chosen: list[Any]) -> None:
    x = torch.rand(3).to("tpu")
    for _ in range(2):
        y = x.exp().sin()
        lazytpu.mark_step()
        expected = x.cpu().exp().sin()
        torch.testing.assert_close(y.cpu(), expected)
    first, second = chosen
    assert (type(first), first.hit) == (Launch, False)
    assert (type(second), second.hit, second.program) == (Launch, True, first.program)


def test_trace_without_live_results_does_not_run(chosen: list[Any]) -> None:
    steps = lazytpu.metrics()["steps"]
    torch.rand(3).to("tpu").exp()
    lazytpu.mark_step()
    assert chosen == [None] and lazytpu.metrics()["steps"] == steps


def test_step_runs_op_by_op_while_its_program_is_compiled(gate: Gate, chosen: list[Any]) -> None:
    x = torch.rand(3).to("tpu")
    y = x.exp().cos()
    lazytpu.mark_step()
    assert [type(strategy) for strategy in chosen] == [Meanwhile]
    torch.testing.assert_close(y.cpu(), x.cpu().exp().cos())
    gate.open()


def test_small_trace_runs_on_the_host_unless_torch_refuses(chosen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal has no effect, and the same cut then runs by a program."""
    monkeypatch.setattr(on_host, "BESIDE", 0)
    x = torch.tensor([1.0, 2.0]).to("tpu")
    lazytpu.sync()
    before = lazytpu.metrics()
    assert (x + 1).tolist() == [2.0, 3.0]
    monkeypatch.setattr(on_host, "compute", lambda *_: 1 // 0)
    assert (x + x).tolist() == [2.0, 4.0]
    after = lazytpu.metrics()
    assert [type(strategy) for strategy in chosen] == [Host, Host]
    assert [after[key] - before[key] for key in ("on_host", "hits", "misses", "compiles")] == [1, 1, 1, 1]


def test_interrupted_host_run_leaves_the_trace_pending(chosen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(on_host, "BESIDE", 0)
    x = torch.tensor([1.0, 2.0]).to("tpu")
    lazytpu.sync()
    y = x - 1
    with monkeypatch.context() as patch:
        patch.setattr(on_host, "compute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            y.tolist()
    assert y.tolist() == [0.0, 1.0]


def test_program_that_donates_live_inputs_runs_on_copies(chosen: list[Any]) -> None:
    weight = torch.arange(4.0).to("tpu")
    kept = None
    for _ in range(3):
        for i in range(on_copies.LEAST):
            weight.mul_(0.5).add_(i)
        lazytpu.mark_step()
        kept = weight.clone()
    assert kept is not None
    assert chosen[-1].copies is not None and chosen[-1].hit


def test_exact_program_runs_when_the_bucket_exhausts_memory(chosen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(self: Any, *arguments: Any) -> Any:
        raise OutOfMemory("program", "RESOURCE_EXHAUSTED: out of memory", ())

    with lazytpu.options(buckets=(16,), background_compile=0.0):
        for length in (9, 10, 11):
            y = torch.arange(float(length)).to("tpu").cumsum(0).exp2()
            lazytpu.mark_step()
            if length == 10:
                monkeypatch.setattr(AtSizes, "launch", no_room)
        torch.testing.assert_close(y.cpu(), torch.arange(11.0).cumsum(0).exp2())
    assert [type(strategy) for strategy in chosen] == [Launch, LaunchSized, LaunchSized]
