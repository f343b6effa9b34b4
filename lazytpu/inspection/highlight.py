"""Syntax highlighting of MLIR text on a terminal."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import ClassVar

from rich.console import Console, RenderableType
from rich.highlighter import RegexHighlighter
from rich.style import StyleType
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

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


class PlainTable(Table):
    """A table that shows text as it is on any console, even if that parses rich's markup."""

    def add_row(self, *cells: RenderableType | None, style: StyleType | None = None, end_section: bool = False) -> None:
        plain = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*plain, style=style, end_section=end_section)


def table(*columns: str, left: Collection[str] = ()) -> Table:
    """Return a table without lines. All columns but the first and those in `left` have figures."""
    made = PlainTable(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        made.add_column(column, justify="right" if number and column not in left else "left")
    return made


def mlir(text: str) -> Text:
    """Return MLIR text with highlighting."""
    lines = (_HIGHLIGHTER(Text(line)) for line in text.splitlines())
    return Text("\n").join(lines)
