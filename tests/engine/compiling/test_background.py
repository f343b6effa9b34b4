"""Compilation in the background: time limits, failures, threads, and the progress line."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tqdm import tqdm

import lazytpu
from lazytpu.engine.compiling import progress
from lazytpu.engine.compiling.progress import Progress, describe
from lazytpu.inspection.debug import because
from lazytpu.inspection.terminal import say
from lazytpu.runtime.errors import CompileError
from tests.engine.conftest import Gate


def metric(name: str) -> int:
    return lazytpu.metrics()[name]


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def step(x: torch.Tensor, kept: bool = False) -> torch.Tensor | tuple[torch.Tensor, ...]:
    middle = x.cos()
    end = middle.square().sum(0)
    return (end, middle) if kept else end


def test_cut_waits_for_small_programs() -> None:
    x = torch.rand(3, 29).to("tpu")
    before = metric("stepwise")
    with lazytpu.options(background_compile=120):
        step(x).tolist()
    assert metric("stepwise") == before


def test_zero_limit_compiles_on_the_cutting_thread(gate: Gate) -> None:
    x = torch.rand(3, 31).to("tpu")
    with lazytpu.options(background_compile=0):
        step(x).tolist()
    assert gate.asked == []


@pytest.mark.parametrize("mode", ["lazy", "strict", "debug"])
def test_other_modes_wait_for_their_programs(gate: Gate, mode: str) -> None:
    x = torch.rand(3, 37).to("tpu")
    with lazytpu.mode(mode):
        got = step(x).cpu()
    assert gate.asked == []
    torch.testing.assert_close(got, step(x.cpu()))


def test_first_cut_after_compilation_uses_the_program(gate: Gate) -> None:
    x = torch.rand(3, 41).to("tpu")
    lazytpu.sync()
    before, hits, steps = metric("stepwise"), metric("hits"), metric("steps")
    for i in range(3):
        step(x).tolist()
        assert (metric("stepwise") - before, metric("hits") - hits) == (i + 1, 0)
    assert len(gate.asked) == 1, "all steps wait for the same compilation"
    gate.open()
    compiles = metric("compiles")
    torch.testing.assert_close(step(x).cpu(), step(x.cpu()))
    assert (metric("stepwise") - before, metric("hits") - hits, metric("steps") - steps) == (3, 1, 4)
    assert metric("compiles") == compiles


def test_program_in_compilation_is_shared_only_by_compatible_cuts(gate: Gate) -> None:
    x = torch.rand(3, 43).to("tpu")
    lazytpu.sync()
    step(x).tolist()
    results = step(x, kept=True)
    lazytpu.mark_step()
    assert len(gate.asked) == 2, "the first program does not compute the second result"
    del results
    step(x).tolist()
    assert len(gate.asked) == 2, "either program computes this result"
    gate.open()
    for a, b in zip(step(x, kept=True), step(x.cpu(), kept=True), strict=True):
        torch.testing.assert_close(a.cpu(), b)


def test_donation_is_decided_for_each_cut(gate: Gate) -> None:
    """The program being compiled donates x; the next cut still needs x afterwards."""
    x = torch.full((64,), 2.0).to("tpu")
    lazytpu.sync()
    x.mul_(3)
    lazytpu.mark_step()
    gate.open()
    kept = x.detach()
    copy = x.clone()
    x.mul_(3)
    lazytpu.mark_step()
    assert [float(t[0]) for t in (x, kept, copy)] == [18.0, 18.0, 6.0]


def test_compile_error_is_raised_by_the_next_cut_and_keeps_all_values(gate: Gate) -> None:
    x, w = torch.rand(3, 47).to("tpu"), torch.zeros(47).to("tpu")
    lazytpu.sync()

    def train() -> None:
        w.add_(step(x))
        lazytpu.mark_step()

    train()
    train()
    gate.error = CompileError("train", "INTERNAL: no luck")
    gate.open()
    with pytest.raises(CompileError, match="no luck") as caught:
        train()
    notes = "".join(caught.value.__notes__)
    assert "test_background.py" in notes and "op by op" in notes
    gate.error = None
    train()
    torch.testing.assert_close(w.cpu(), 4 * step(x.cpu()))


def test_compile_error_within_the_limit_is_raised_by_its_own_cut(gate: Gate) -> None:
    x = torch.rand(3, 53).to("tpu")
    kept = x + 1
    lazytpu.options.background_compile = 0
    lazytpu.mark_step()
    gate.error = CompileError("step", "INTERNAL: no luck")
    gate.open()
    lost = step(x)
    with pytest.raises(CompileError, match="no luck") as caught:
        lazytpu.mark_step()
    assert "results are lost" in "".join(caught.value.__notes__)
    with pytest.raises(CompileError, match="no luck"):
        lost.cpu()
    gate.error = None
    torch.testing.assert_close(kept.cpu(), x.cpu() + 1)
    torch.testing.assert_close(step(x).cpu(), step(x.cpu()))


def test_two_threads_share_one_compilation(gate: Gate) -> None:
    x = torch.rand(3, 59).to("tpu")
    lazytpu.sync()
    lazytpu.options.background_compile = 120
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(step(x).cpu())) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: bool(gate.asked))
    gate.open()
    for thread in threads:
        thread.join(120)
    assert len(gate.asked) <= 2 and len(results) == 2
    for result in results:
        torch.testing.assert_close(result, step(x.cpu()))


# -- the progress line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def jobs(*seconds: float) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            number=i,
            what=f"program {i} train (1,359 recorded ops)",
            seconds=s,
            meanwhile=None,
            expected=20.0,
            late=False,
            way="whole",
            reason="argument 1 of `mm` was f32[8]",
        )
        for i, s in enumerate(seconds)
    ]


def test_progress_line_has_program_time_reason_and_queue() -> None:
    line = describe(jobs(12.3, 4.5, 3.0))
    assert "program 0 train (1,359 recorded ops), about 20 s, 12 s so far, 2 more to go; the script waits" in line
    assert "because: argument 1 of `mm` was f32[8]" in line


def test_progress_line_omits_an_exceeded_estimate() -> None:
    assert ", 31 s so far;" in describe(jobs(31.0))


def test_progress_line_has_the_awaited_program_and_its_substitute() -> None:
    first, second = jobs(12.0, 4.0)
    first.late = True
    assert "program 1" in describe([first, second])
    assert "meanwhile ops run one by one" in describe([first])
    first.meanwhile, first.way = object(), "quick"
    assert ", 12 s so far; meanwhile it runs with less optimisation" in describe([first])
    first.way = "parts"
    assert "meanwhile it runs in parts" in describe([first])


def test_progress_line_is_shorter_in_a_narrow_terminal() -> None:
    line = describe(jobs(12.3, 4.5), 80)
    assert line == "lazytpu: compiling program 0 train, 12 of about 20 s: argument 1 of `mm` was f32[8]"
    assert "program 0 train, 31 s: argument 1" in describe(jobs(31.0), 80)
    assert describe(jobs(12.3), 140) == describe(jobs(12.3))


def test_progress_line_disappears_after_the_last_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    running = jobs(7.0)
    shown = Progress(lambda: list(running))
    shown.show()
    until(lambda: "program 0 train" in terminal.getvalue())
    running.clear()
    shown.close()
    assert terminal.getvalue().endswith("\r")
    assert not any(t.name == "lazytpu progress" for t in threading.enumerate())


class Gone(Terminal):
    """A terminal whose reader has closed it."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_unwritable_standard_error_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, gone, running = io.StringIO(), Gone(), jobs(7.0)
    closed.close()
    shown = Progress(lambda: list(running))
    for stream in (None, object(), closed, gone):
        with monkeypatch.context() as patched, lazytpu.options(debug=0 if stream is gone else 1):
            patched.setattr(sys, "stderr", stream)
            shown.show()
            say("a line")
            because(0, "train", "it is new")
            until(lambda: not any(t.name == "lazytpu progress" for t in threading.enumerate()))
    lock: Any = tqdm.get_lock()
    assert all(inner.acquire(False) for inner in lock.locks), "other bars of the process would wait for ever"
    lock.release()


def test_without_a_terminal_only_debug_prints_one_line_for_each_program(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    running = jobs(7.0)
    shown = Progress(lambda: running)
    shown.show()
    assert capfd.readouterr().err == ""
    with lazytpu.options(debug=1):
        shown.show()
        shown.show()
    assert capfd.readouterr().err.count("compiling program 0 train (1,359 recorded ops)") == 1


def test_progress_line_is_shown_on_a_terminal_of_unknown_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pseudo-terminal has 0 columns and rows until its creator sets them."""
    reader, writer = os.openpty()
    monkeypatch.setattr(progress, "INTERVAL", 0.01)
    running = jobs(7.0)
    shown = Progress(lambda: list(running))
    with open(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert os.get_terminal_size(writer).columns == 0
        shown.show()
        text = b""
        while b"program 0 train" not in text:
            text += os.read(reader, 1024)
        assert max(map(len, text.split(b"\r"))) <= progress.UNKNOWN
        running.clear()
        shown.close()
    os.close(reader)
