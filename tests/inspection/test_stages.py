"""Progress of long work on standard error: one line on a terminal, and elsewhere one per stage on request."""

from __future__ import annotations

import io
import re
import sys

import pytest

import lazytpu
from lazytpu.inspection.stages import stages


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return the output of a terminal as standard error from here on."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    return terminal


def run_stages(shown: bool | None) -> None:
    with stages(shown) as tell:
        tell("recording [step]")
        print("of the user")
        tell("compiling")


def test_progress_is_printed_only_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run_stages(None)
    run_stages(False)
    assert capsys.readouterr() == ("of the user\n" * 2, "")


def test_lines_are_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "lazytpu: recording [step]\nlazytpu: compiling\n"
    run_stages(True)
    assert capsys.readouterr() == ("of the user\n", lines)
    with lazytpu.options(debug=1):
        run_stages(None)
    assert capsys.readouterr().err == lines


def test_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = on_terminal(monkeypatch)
    run_stages(None)
    assert capsys.readouterr().out == "of the user\n", "goes to a file"
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "lazytpu: recording [step] 0:00:00" in text and "lazytpu: compiling 0:00:00" in text
    shown = terminal.getvalue()
    run_stages(False)
    assert terminal.getvalue() == shown, "switched off"


def test_an_error_takes_the_line_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with pytest.raises(KeyError), stages():
        raise KeyError
    assert terminal.getvalue().endswith("\x1b[2K"), "the line is erased"
    assert "\x1b[?25h" in terminal.getvalue(), "and the cursor is there again"
