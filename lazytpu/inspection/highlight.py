"""Syntax highlighting of MLIR text on a terminal."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Console
from rich.highlighter import RegexHighlighter
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
    """Create a console with the colour theme. Not cached, since a test or a notebook may replace the streams."""
    return Console(stderr=stderr, theme=THEME, highlight=False, soft_wrap=True)


def mlir(text: str) -> Text:
    """Return MLIR text with highlighting."""
    lines = (_HIGHLIGHTER(Text(line)) for line in text.splitlines())
    return Text("\n").join(lines)
