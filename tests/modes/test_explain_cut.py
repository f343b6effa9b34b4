"""explain_cut(): the cause of each cut, and the line of the user's program."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.frontend import activation
from lazytpu.frontend.recording import required_cuts
from lazytpu.trace import cuts, loops


def line_of(function: Callable[..., object], text: str) -> int:
    """Return the number of the line of `function` that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return number


def last() -> str:
    return str(lazytpu.explain_cut(1))


def test_cuts_by_marks_reads_and_steps_have_cause_and_line() -> None:
    net = nn.Linear(3, 2).to("tpu")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(4, 3).to("tpu")
    lazytpu.sync()

    def train() -> None:
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()  # here
        optimizer.zero_grad()
        x + 1

    train()
    step = f"optimizer.step() at {__file__}:{line_of(train, 'here')}, 'optimizer.step()  # here': "
    assert last().startswith(step)
    assert last().endswith(" ops ran")
    lazytpu.mark_step()
    assert last().startswith(f"mark_step() at {__file__}:")
    assert last().endswith(": 1 op ran")
    train()
    net.weight.detach().cpu()
    assert str(lazytpu.explain_cut()).splitlines()[-1] == last(), "oldest first"
    assert lazytpu.explain_cut(1)[0].cause == "optimizer.step()", "the read does not change the cause"
    line = sys._getframe().f_lineno + 1
    (x * 2).sum().item()
    assert last() == f"host read at {__file__}:{line}, '(x * 2).sum().item()': 2 ops ran, 1 left pending"
    x * 3
    lazytpu.sync()
    assert last().startswith(f"synchronize() at {__file__}:")


def test_repeated_cuts_are_folded_when_printed() -> None:
    layers, steps = 12, 4
    x = torch.ones(4, 3).to("tpu")
    lazytpu.sync()

    def train() -> None:
        for _ in range(steps):
            for _ in range(layers):
                (x * 2).sum().item()  # read
            x + 1
            lazytpu.mark_step()  # mark

    train()
    read = f"host read at {__file__}:{line_of(train, '# read')}, '(x * 2).sum().item()  # read': 2 ops ran"
    mark = f"mark_step() at {__file__}:{line_of(train, '# mark')}, 'lazytpu.mark_step()  # mark': 1 op ran"
    text = lazytpu.explain_cut(steps * (layers + 1))
    assert len(text) == steps * (layers + 1), "only the printed text is folded"
    assert str(text).splitlines() == ["4 times:", f"  {read} (12 times)", f"  {mark}"]
    assert str(lazytpu.explain_cut(3)).splitlines() == [f"{read} (2 times)", mark]


@pytest.mark.parametrize(
    ("rows", "lines"),
    [
        ("", []),
        ("a", ["a"]),
        ("abc", ["a", "b", "c"]),
        ("aab", ["a (2 times)", "b"]),
        ("ababa", ["2 times:", "  a", "  b", "a"]),
        ("cabcabd", ["2 times:", "  c", "  a", "  b", "d"]),
        ("xaabaaby", ["x", "2 times:", "  a (2 times)", "  b", "y"]),
        ("aabcaabcdaabcaabcd", ["2 times:", "  2 times:", "    a (2 times)", "    b", "    c", "  d"]),
    ],
)
def test_folded_lines_nest(rows: str, lines: list[str]) -> None:
    assert [line for row in cuts._folded(list(rows)) for line in cuts._lines(row)] == lines


def test_loops_limits_and_step_starts_are_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "FIRST", 16)
    x = torch.ones(6, device="tpu")
    lazytpu.sync()
    for _ in range(30):
        x = (x + 1).mul(0.5)
    assert "repeated block" in str(lazytpu.explain_cut(1)), str(lazytpu.explain_cut())
    lazytpu.sync()
    with lazytpu.options(trace_limit=3), pytest.warns(UserWarning, match="3 ops were recorded without a cut"):
        (x + 1).add(2).add(3).add(4)
    assert lazytpu.explain_cut(1)[0].cause == "size limit"
    lazytpu.sync()
    net = nn.Linear(6, 2).to("tpu")
    net(x - 1)
    assert lazytpu.explain_cut(1)[0].cause == "step begins"
    lazytpu.mark_step()


def test_idle_device_causes_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(required_cuts, "IDLE_AFTER", 8)
    x = torch.ones(7, device="tpu")
    lazytpu.sync()
    with monkeypatch.context() as busy:
        busy.setattr(activation.engine(), "idle", lambda: False)
        y = x.sin()
        for _ in range(7):
            y = y.sin()
        before = lazytpu.explain_cut(64)
        y.cos()
        assert lazytpu.explain_cut(64) == before, "a busy device causes no cut"
        lazytpu.mark_step()
    for repeat in range(2):  # the second time without a query of the device
        y = x.cos()
        for _ in range(7):
            y = y.cos()
        assert lazytpu.explain_cut(64)[-1].cause == "mark_step()"
        y.sin()
        assert last().startswith("device idle at") and last().endswith(": 8 ops ran"), repeat
        lazytpu.mark_step()
    loss = torch.ones(3, 7, device="tpu", requires_grad=True)
    lazytpu.mark_step()
    for _ in range(12):
        loss = loss.sin()
    assert lazytpu.explain_cut(1)[0].cause == "mark_step()", "a step is one program"
    lazytpu.mark_step()


def test_cuts_are_reported_in_the_recording_thread() -> None:
    x = torch.ones(5, device="tpu")
    lazytpu.sync()
    y = x + 4
    mine: list[int] = []

    def use() -> None:
        mine.append(len(lazytpu.explain_cut(64)))
        y * 2

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert mine == [0]
    assert last() == f"another thread reads at {__file__}:{line_of(use, 'y * 2')}, 'y * 2': 1 op ran"


def test_ops_of_strict_mode_are_not_reported() -> None:
    x = torch.ones(5, device="tpu")
    lazytpu.sync()
    before = lazytpu.explain_cut(64)
    with lazytpu.mode("strict"):
        (x + 4).tolist()
    assert lazytpu.explain_cut(64) == before
    assert str(lazytpu.explain_cut(0)) == "no cuts"
