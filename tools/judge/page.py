"""The results as a Markdown table, and into a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN = "<!-- figures: make judge -->"
END = "<!-- end of figures -->"
HEAD = "| step | way | µs | of as it is | ops | temporary MB | exposed µs | compiled in s |"


def table(results: Mapping[str, Any]) -> str:
    """Return one row for each strategy of each case."""
    rows = [HEAD, "|---" * 2 + "|--:" * 6 + "|"]
    for name, case in results.items():
        figures = case["figures"]
        base = figures[0]
        titles = [f"**{name}**: {case['about']}", *[""] * (len(figures) - 1)]
        for title, figure in zip(titles, figures, strict=True):
            is_complete = figure.get("complete", True) and base.get("complete", True)
            ratio = f"{figure['microseconds'] / base['microseconds']:.2f}" if is_complete else "unknown"
            least = "" if figure.get("complete", True) else "at least "
            rows.append(
                f"| {title} | {figure['way']} | {least}{figure['microseconds']:,.1f} | {ratio} "
                f"| {figure['ops']:,} | {figure['temporary'] / 1e6:,.1f} | {figure['exposed']:,.1f} "
                f"| {figure['compile_seconds']:,.0f} |"
            )
    return "\n".join(rows)


def write(page: Path, results: Mapping[str, Any]) -> None:
    """Put the table between the page's markers. Raises ValueError for a page that has none."""
    text = page.read_text()
    before, begin, remaining = text.partition(BEGIN)
    _, end, after = remaining.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} has no place for the table: {BEGIN} ... {END}")
    page.write_text(f"{before}{begin}\n{table(results)}\n{end}{after}")
