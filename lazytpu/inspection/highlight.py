"""The console of the tools: tables, and MLIR text with syntax highlighting."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from typing import ClassVar

from rich.console import Console, RenderableType
from rich.highlighter import RegexHighlighter
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from lazytpu.inspection.diff import DiffLine

THEME = Theme(
    {
        "mlir.op": "bold",
        "mlir.value": "cyan",
        "mlir.symbol": "magenta",
        "mlir.type": "green",
        "mlir.string": "yellow",
        "mlir.location": "dim",
        "mlir.comment": "dim italic",
    }
)


UNLIMITED = 1000
"""Columns of a console that truncates nothing."""


class MlirHighlighter(RegexHighlighter):
    """Highlights ops, values, types and strings, and dims source lines."""

    base_style = "mlir."
    highlights: ClassVar = [
        r"(?P<type>(?:tensor|complex)<[^<>]*(?:<[^<>]*>)?[^<>]*>)",
        r"(?P<value>%[\w.$-]+(?:#\d+)?)",
        r"(?P<symbol>@[\w.$-]+)",
        r'(?:^|=|\s)\s*"?(?P<op>(?:lazytpu|stablehlo|chlo|func|builtin|sdy)\.[\w.]+)',
        r'(?P<string>"(?:[^"\\]|\\.)*")',
        r"(?P<location>\bloc\(.*\)\s*$)",
        r"(?P<comment>//.*$)",
    ]


_HIGHLIGHTER = MlirHighlighter()


def console(*, stderr: bool = False) -> Console:
    """Create a console with the colour theme. Not cached, since a test or a notebook may replace the streams.

    It shows text as it is, without rich's markup and emoji: names, paths and source code have brackets and colons. In a
    pipe or a file, where rich assumes 80 columns, tables are as wide as their contents, unless COLUMNS is set.
    """
    made = Console(stderr=stderr, theme=THEME, highlight=False, soft_wrap=True, markup=False, emoji=False)
    if not made.is_terminal and not made.is_jupyter and "COLUMNS" not in os.environ:
        made.width = UNLIMITED
    return made


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    left: Collection[str] | None = None,
    widths: Sequence[int] = (),
) -> Table:
    """Return a table without lines, which shows text as it is on any console, even if that parses rich's markup.

    All columns have figures but those in `left`, by default the first one. `widths` are the least ones of the first
    columns.
    """
    made = Table(box=None, pad_edge=False)
    for column, width in zip_longest(columns, widths):
        is_left = column in (columns[:1] if left is None else left)
        made.add_column(column, justify="left" if is_left else "right", min_width=width)
    for row in rows:
        made.add_row(*[Text(cell) if isinstance(cell, str) else cell for cell in row])
    return made


def show(*parts: RenderableType) -> None:
    """Print texts and tables, each on lines of its own."""
    out = console()
    for part in parts:
        out.print(part)


def changed(line: DiffLine | None) -> Text:
    """Return a line of a diff; "..." for lines that are left out."""
    if line is None:
        return Text("...", style="dim")
    return Text(f"{line.sign} {line.text}", style={"-": "red", "+": "green"}.get(line.sign, ""))


def mlir(text: str) -> Text:
    """Return MLIR text with highlighting."""
    lines = (_HIGHLIGHTER(Text(line)) for line in text.splitlines())
    return Text("\n").join(lines)
