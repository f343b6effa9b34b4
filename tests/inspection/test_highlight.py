"""The console of the tools."""

from __future__ import annotations

import pytest
from rich.table import Table

from lazytpu.inspection.highlight import console


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
