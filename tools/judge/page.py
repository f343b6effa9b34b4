"""The results as a Markdown table, and into a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TOPOLOGY = "v6e:2x2"
"The topology of the table of passes."
END = "<!-- end of figures -->"
STRATEGIES = ("as it is", "without own-shapes", "without overlap-collectives")


def table(results: Mapping[str, Any]) -> str:
    """Return one row for each strategy of each case on `TOPOLOGY`."""
    rows = [
        "| step | way | µs | of as it is | ops | temporary MB | exposed µs | compiled in s |",
        "|---" * 2 + "|--:" * 6 + "|",
    ]
    for name, case in results.items():
        if case["topology"] != TOPOLOGY:
            continue
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


def table_by_chip(results: Mapping[str, Any]) -> str:
    """Return one row for each topology of the cases that were judged on several: microseconds and, in brackets, the
    exposed ones, with all passes and without those that change communication."""
    rows = [
        "| step | chips | " + " | ".join(f"{name}, µs" for name in STRATEGIES) + " |",
        "|---" * 2 + "|--:" * len(STRATEGIES) + "|",
    ]
    names = [key.partition(" on ")[0] for key, case in results.items() if case["topology"] != TOPOLOGY]
    for step in dict.fromkeys(names):
        cases = [case for key, case in results.items() if key.partition(" on ")[0] == step]
        for title, case in zip([f"**{step}**: {cases[0]['about']}", *[""] * (len(cases) - 1)], cases, strict=True):
            figures = {figure["way"]: figure for figure in case["figures"]}
            cells = [
                f"{figures[name]['microseconds']:,.0f} ({figures[name]['exposed']:,.0f})"
                if name in figures
                else "the same"
                for name in STRATEGIES
            ]
            rows.append(f"| {title} | {case['topology']} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


TABLES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "<!-- figures: make judge -->": table,
    "<!-- figures: make judge, by chip -->": table_by_chip,
}
"The table after each marker."


def write(page: Path, results: Mapping[str, Any]) -> None:
    """Put the table between the page's markers. Raises ValueError for a page that has none."""
    text = page.read_text()
    for begin, make in TABLES.items():
        before, marker, remaining = text.partition(begin)
        _, end, after = remaining.partition(END)
        if marker and end:
            page.write_text(f"{before}{begin}\n{make(results)}\n{END}{after}")
            return
    raise ValueError(f"{page} has no place for a table: {' or '.join(TABLES)} ... {END}")
