"""The form of the commands of `lazytpu-show`, and the arguments that several of them take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lazytpu.passes.generations import GENERATIONS

GENERATION = "v6e"

Argument = tuple[tuple[str, ...], Mapping[str, Any]]
"""The names and the options of an argument, for `ArgumentParser.add_argument`."""


def argument(*names: str, **options: Any) -> Argument:
    """Return an argument of a command."""
    return names, options


FILE = argument("file", type=Path, metavar="FILE|DIR", help="a module of a dump; for DIR its largest")
FILES = argument("paths", nargs="+", type=Path, metavar="FILE|DIR")
CACHE = argument("--dir", type=Path, metavar="DIR", help="the cache (default: that of LAZYTPU_CACHE_DIR)")
LOAD = argument("--load", action="append", default=[], metavar="FILE|MODULE", help="import passes first")
COSTS = (
    argument(
        "--generation", default=GENERATION, choices=list(GENERATIONS), help=f"TPU generation, {GENERATION} by default"
    ),
    argument("--model", action="store_true", help="do not ask the TPU's compiler, even if it is installed"),
)
"""The source of times."""


def passes(default: str) -> tuple[Argument, Argument]:
    """Return the arguments that choose passes."""
    return argument("-p", "--passes", help=f"as for lazytpu-opt; by default {default}"), LOAD


@dataclass(frozen=True)
class Command:
    """A command: the function that runs it and returns the exit status, a line about it, and its arguments."""

    run: Callable[[argparse.Namespace], int]
    summary: str
    arguments: tuple[Argument, ...]
    description: str = ""

    def add(self, commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
        """Add the command to a parser. Its functions raise ValueError for invalid arguments and files."""
        description = self.description or f"{self.summary[0].upper()}{self.summary[1:]}."
        parser = commands.add_parser(name, help=self.summary, description=description)
        for names, options in self.arguments:
            parser.add_argument(*names, **options)
        parser.set_defaults(run=self.run)
