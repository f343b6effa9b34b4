"""The console of the tools."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.table import Table

from lazytpu.inspection.highlight import console, table


def test_tables_in_a_pipe_truncate_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    name = "stablehlo." + "x" * 200
    table = Table("op", "count", box=None)
    table.add_row(name, "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    console().print(table)
    assert name in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    console().print(table)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@pytest.mark.parametrize("text", ["[/b]", "loss[train]", "[bold]x", ":smile:", "C:\\[a]"])
def test_console_and_tables_show_text_as_it_is(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = table(["path"], [[text]])
    console().print(text, made, sep="\n")
    assert capsys.readouterr().out.split() == [text, "path", text]
    Console(width=100).print(made)  # with rich's markup, as in a notebook
    assert capsys.readouterr().out.split() == ["path", text]
