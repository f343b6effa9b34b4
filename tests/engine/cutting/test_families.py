"""A family of small traces runs on the host once some members have programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lazytpu
from lazytpu import wiring
from lazytpu.engine.cutting import families, on_host
from lazytpu.engine.recompiles.host_runs import HostLog


@pytest.fixture(autouse=True)
def beside_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the limits as after a step and one trace of each family."""
    monkeypatch.setattr(on_host, "BESIDE", 0)
    monkeypatch.setattr(families, "AFTER", 1)


def counted(run: Callable[[], Any]) -> tuple[Any, int, int]:
    """Call `run`; return its result, the number of cuts run on the host and the number of programs compiled."""
    lazytpu.sync()
    before = lazytpu.metrics()
    got = run()
    after = lazytpu.metrics()
    return got, after["on_host"] - before["on_host"], after["compiles"] - before["compiles"]


class Episodes:
    """Training on episodes of different lengths, with one read for each."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.policy = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2)).to(device)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), 0.1)
        self.device = device

    def run(self, length: int) -> list[torch.Tensor]:
        x = torch.linspace(-1, 1, 3 * length).view(length, 3).to(self.device)
        weights = torch.arange(1.0, length + 1).to(self.device)
        weights = weights / weights.std()
        chosen = torch.arange(length).to(self.device) % 2
        losses = [F.cross_entropy(self.policy(x[i : i + 1]), chosen[i : i + 1]) * weights[i] for i in range(length)]
        self.optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        return [p.detach().cpu() for p in self.policy.parameters()]


def test_episodes_of_other_lengths_compile_nothing() -> None:
    actual, expected = Episodes("tpu"), Episodes("cpu")
    for episodes in (actual, expected):
        episodes.run(2)  # a first step
    torch.testing.assert_close(actual.run(3), expected.run(3))
    for length in (5, 4):
        got, ran, compiled = counted(lambda length=length: actual.run(length))
        assert (ran > 0, compiled) == (True, 0)
        torch.testing.assert_close(got, expected.run(length), rtol=1e-4, atol=1e-5)


def chain(length: int, x: torch.Tensor) -> torch.Tensor:
    for _ in range(length):
        x = (x @ x).tanh()
    return x


def test_elementwise_ops_of_half_precision_run_on_the_host() -> None:
    x = torch.linspace(-3, 3, 12, dtype=torch.bfloat16)

    def run(n: int, device: str) -> torch.Tensor:
        y = x.to(device)
        for _ in range(n):
            y = torch.addcdiv(y.sin(), y, y.exp() + 1)
        return y.cpu()

    for n in (3, 4, 5, 6, 7, 8):
        got, ran, compiled = counted(lambda n=n: run(n, "tpu"))
        if n > 4:
            assert (ran, compiled) == (1, 0)
        torch.testing.assert_close(got, run(n, "cpu"))


def test_frequent_trace_gets_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_host, "RUNS", 2)
    x = torch.rand(3, 3)
    counts = [counted(lambda n=n: chain(n, x.to("tpu")).cpu())[1:] for n in (6, 7, 7, 7, 7)]
    assert counts == [(0, 1), (1, 0), (1, 0), (0, 1), (0, 0)]
    large = torch.rand(181, 181)  # twice the limit of elements
    assert [counted(lambda: chain(8, large.to("tpu")).cpu())[1:] for _ in range(2)] == [(1, 0), (0, 1)]


def test_deterministic_algorithms_need_programs() -> None:
    x = torch.rand(3, 3)
    torch.use_deterministic_algorithms(True)
    try:
        counts = [counted(lambda n=n: chain(n, x.to("tpu")).cpu())[1:] for n in (8, 9)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert counts == [(0, 1)] * 2


@pytest.mark.parametrize(
    "run",
    [
        lambda n: F.dropout(chain(n, torch.ones(4, 4).to("tpu"))),
        lambda n: chain(n, torch.ones(4, 4, dtype=torch.bfloat16).to("tpu")),
        lambda n: chain(n, torch.ones(513, 513).to("tpu")),
        lambda n: chain(n, torch.full((4, 4), 1e30).to("tpu")).to(torch.int32),
    ],
    ids=["random", "half", "large", "cast"],
)
def test_ops_with_different_results_on_the_host_have_programs(run: Callable[[int], torch.Tensor]) -> None:
    counts = [counted(lambda n=n: run(n).cpu())[1:] for n in (3, 4, 5)]
    assert [ran for ran, _ in counts] == [0] * 3


def test_index_out_of_range_is_reported_with_its_line() -> None:
    table, index = torch.rand(4, 2).to("tpu"), torch.tensor([1, 7]).to("tpu")
    chain(2, table[index[:1]].repeat(2, 1)[:2]).cpu()
    with pytest.raises(IndexError, match=r"test_families\.py"):
        chain(3, table[index].repeat(1, 1)[:2]).cpu()
    assert chain(1, table[:2]).cpu().shape == (2, 2)


@pytest.fixture
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the log, as in a process without host runs."""
    runner = wiring.start().cutter.chooser.on_host
    monkeypatch.setattr(runner, "log", HostLog())
    monkeypatch.setattr(runner, "families", families.Families())
    monkeypatch.setattr(runner, "_told", False)


@pytest.mark.usefixtures("fresh_log")
def test_host_runs_are_explained_and_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_host, "RUNS", 2)
    x = torch.rand(3, 3)
    with lazytpu.options(debug=1):
        for n in (20, 21, 22, 22, 22):
            chain(n, x.to("tpu")).cpu()
    (message,) = [line for line in capsys.readouterr().err.splitlines() if "vary" in line]
    assert "traces of chain vary" in message
    assert "LAZYTPU_ON_HOST=0" in message
    (listed,) = lazytpu.explain().on_host
    assert (listed.name, listed.varies, listed.traces, listed.programs, listed.runs) == ("chain", True, 2, 1, 3)
    assert (listed.fewest, listed.most) == (42, 44)
    assert "test_families.py:" in listed.begins
    text = str(lazytpu.explain())
    assert "on the host: chain, 2 traces of 42 to 44 ops from `mm` at " in text
    assert "ran 3 times" in text
    assert "saved about 0.2 s of compiling; 1 came so often that they got programs; on_host = 0" in text


@pytest.mark.usefixtures("fresh_log")
def test_setting_disables_host_runs() -> None:
    x = torch.rand(3, 3)
    with lazytpu.options(on_host=False):
        counts = [counted(lambda n=n: chain(n, x.to("tpu")).cpu())[1:] for n in (30, 31, 32)]
    assert counts == [(0, 1)] * 3
    assert not lazytpu.explain().on_host
