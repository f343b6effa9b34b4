"""The results as a Markdown table, and into a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN = "<!-- figures: make judge -->"
END = "<!-- end of figures -->"
HEAD = "| step | way | µs | of as it is | ops | temporary MB | exposed µs | compiled in s |"


def table(results: Mapping[str, Any]) -> str:
    """One row for each way of each case."""
    rows = [HEAD, "|---" * 2 + "|--:" * 6 + "|"]
    for name, case in results.items():
        figures = case["figures"]
        base = figures[0]
        titles = [f"**{name}**: {case['about']}", *[""] * (len(figures) - 1)]
        for title, each in zip(titles, figures, strict=True):
            known = each.get("complete", True) and base.get("complete", True)
            ratio = f"{each['microseconds'] / base['microseconds']:.2f}" if known else "unknown"
            least = "" if each.get("complete", True) else "at least "
            rows.append(
                f"| {title} | {each['way']} | {least}{each['microseconds']:,.1f} | {ratio} "
                f"| {each['ops']:,} | {each['temporary'] / 1e6:,.1f} | {each['exposed']:,.1f} "
                f"| {each['compile_seconds']:,.0f} |"
            )
    return "\n".join(rows)


def write(page: Path, results: Mapping[str, Any]) -> None:
    """Put the table between the page's markers. Raises ValueError for a page that has none."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the table: {BEGIN} ... {END}")
    page.write_text(f"{before}{begin}\n{table(results)}\n{end}{after}")
