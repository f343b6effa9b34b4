"""The judge's table, and its place on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.judge.measure import Figures
from tools.judge.page import BEGIN, END, table, write

RESULTS = {
    "gpt": {
        "about": "a GPT",
        "topology": "v6e:2x2",
        "figures": [
            Figures("as it is", 100.0, 12, 2_000_000, 0.0, 30.0).as_dict(),
            Figures("op by op", 250.0, 1_400, 0, 1.5, 90.0).as_dict(),
        ],
    }
}


def test_rows_are_compared_with_the_first() -> None:
    _, _, first, second = table(RESULTS).splitlines()
    assert first == "| **gpt**: a GPT | as it is | 100.0 | 1.00 | 12 | 2.0 | 0.0 | 30 |"
    assert second == "|  | op by op | 250.0 | 2.50 | 1,400 | 0.0 | 1.5 | 90 |"


def test_table_is_inserted_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(page, RESULTS)
    assert page.read_text() == f"before\n{BEGIN}\n{table(RESULTS)}\n{END}\nafter\n"


def test_page_without_markers_stays_unchanged(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no place\n")
    with pytest.raises(ValueError, match="no place for the table"):
        write(page, RESULTS)
    assert page.read_text() == "no place\n"
