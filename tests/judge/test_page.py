"""The judge's table, and its place on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.judge.measure import Figures
from tools.judge.page import END, TABLES, table, table_by_chip, write

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


def test_other_topologies_have_a_table_of_their_own() -> None:
    figures = [
        Figures("as it is", 90.0, 12, 0, 20.4, 30.0).as_dict(),
        Figures("without own-shapes", 1_250.0, 14, 0, 30.0, 90.0).as_dict(),
    ]
    results = {**RESULTS, "gpt on v5e:4x4": {"about": "a GPT", "topology": "v5e:4x4", "figures": figures}}
    assert table(results) == table(RESULTS)
    assert table_by_chip(RESULTS).count("\n") == 1
    _, _, first, second = table_by_chip(results).splitlines()
    assert first == "| **gpt**: a GPT | v6e:2x2 | 100 (0) | the same | the same |"
    assert second == "|  | v5e:4x4 | 90 (20) | 1,250 (30) | the same |"


@pytest.mark.parametrize("begin", TABLES)
def test_table_is_inserted_between_the_markers(begin: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin}\nold\n{END}\nafter\n")
    write(page, RESULTS)
    assert page.read_text() == f"before\n{begin}\n{TABLES[begin](RESULTS)}\n{END}\nafter\n"


def test_pages_have_the_tables_of_the_results() -> None:
    root = Path(__file__).parents[2]
    results = json.loads((root / "docs/judge.json").read_text())
    for page, make in (("passes", table), ("collectives", table_by_chip)):
        assert make(results) in (root / f"docs/{page}.md").read_text()


def test_page_without_markers_stays_unchanged(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no place\n")
    with pytest.raises(ValueError, match="no place for a table"):
        write(page, RESULTS)
    assert page.read_text() == "no place\n"
