"""`lazytpu-show runs`: all programs of a dumped run with the reasons for them, and the comparison of two runs."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lazytpu.inspection.about import About
from lazytpu.inspection.diff import diff
from lazytpu.inspection.files import IMPORTED, modules
from lazytpu.inspection.highlight import console, table
from lazytpu.inspection.html.page import page, read_part
from lazytpu.inspection.step.commands import add_generation, add_model, reason_of, written_with
from lazytpu.inspection.step.costs import CostedStep, costed


@dataclass(frozen=True)
class RunProgram:
    """A program of a dumped run: its file before the passes, and its cost."""

    file: Path
    step: CostedStep

    @property
    def name(self) -> str:
        """The name of its dump, such as 007-train_step."""
        return self.file.name.removesuffix(IMPORTED)

    @property
    def time(self) -> str:
        """Microseconds of a run."""
        return f"{1e6 * self.step.cost['seconds']:,.1f}"

    @cached_property
    def reason(self) -> str:
        """Why it was compiled; empty if the dump does not say so."""
        return reason_of(self.file) or ""


@dataclass(frozen=True)
class Pair:
    """A program of a run and its counterpart in another run: the program of the same name that was compiled as the
    same number of that name. Either may be missing."""

    first: RunProgram | None
    second: RunProgram | None

    @property
    def change(self) -> str:
        """The differences of the second program from the first one."""
        if self.first is None or self.second is None:
            return "only in the second run" if self.first is None else "only in the first run"
        lines = sum(line.sign != " " for line in diff(self.first.file.read_text(), self.second.file.read_text()))
        before, after = self.first.step.cost["seconds"], self.second.step.cost["seconds"]
        return f"{lines:,} lines differ, {after / before - 1:+.0%} of time" if lines and before else "the same"


def programs(folder: Path, generation: str, *, by_model: bool = False) -> list[RunProgram]:
    """Return the programs of a dump in the order of their compilation. Raises ValueError if there are none."""
    files = {file.name.removesuffix(IMPORTED): file for file in modules([folder]) if file.name.endswith(IMPORTED)}
    steps = {name: costed(file.read_text(), name, generation, by_model=by_model) for name, file in files.items()}
    return [RunProgram(files[name], step) for name, step in steps.items()]


def paired(first: Sequence[RunProgram], second: Sequence[RunProgram]) -> list[Pair]:
    """Return the programs of two runs side by side, in the order of the first run."""
    by_name = [_numbered(first), _numbered(second)]
    return [Pair(by_name[0].get(key), by_name[1].get(key)) for key in dict.fromkeys(chain(*by_name))]


def _numbered(of_run: Sequence[RunProgram]) -> dict[tuple[str, int], RunProgram]:
    seen: Counter[str] = Counter()
    numbered: dict[tuple[str, int], RunProgram] = {}
    for program in of_run:
        name = program.name.partition("-")[2]
        numbered[name, seen[name]] = program
        seen[name] += 1
    return numbered


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `runs` to a parser of commands."""
    parser = commands.add_parser("runs", help="all programs of a run with their reasons, or two runs side by side")
    parser.add_argument("first", type=Path, metavar="DIR")
    parser.add_argument("second", type=Path, nargs="?", metavar="DIR", help="another run, to compare with the first")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="write index.html and a page for each program")
    add_generation(parser)
    add_model(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises ValueError for a folder without programs."""
    runs = [programs(folder, args.generation, by_model=args.model) for folder in (args.first, args.second) if folder]
    pairs = paired(runs[0], runs[1]) if args.second else [Pair(program, None) for program in runs[0]]
    columns = ["program", "ops", "us"] + (["in the other run", "ops", "us", "change"] if args.second else []) + ["why"]
    rows = [_row(pair, compared=args.second is not None) for pair in pairs]
    if args.output is None:
        shown = table(*columns, left=(columns[-1], "in the other run", "change"))
        for row in rows:
            shown.add_row(*row)
        console().print(shown, markup=False)
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    for folder, of_run in zip(("first", "second"), runs, strict=False):
        for program in of_run:
            about = About.parse(written_with(program.file, "about") or "")
            file = args.output / f"{folder}-{program.name}.html"
            file.write_text(page(program.step, why=program.reason, about=about), encoding="utf-8")
    index = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(
        read_part("runs.html.jinja")
    )
    heading = " and ".join(str(folder) for folder in (args.first, args.second) if folder)
    style = Markup(read_part("page.css"))
    text = index.render(columns=columns, rows=rows, style=style, heading=heading, source=runs[0][0].step.source)
    (args.output / "index.html").write_text(text, encoding="utf-8")
    print(f"{args.output / 'index.html'}: {len(pairs):,} programs; open it in a browser")
    return 0


def _row(pair: Pair, *, compared: bool) -> list[str]:
    def cells(program: RunProgram | None) -> list[str]:
        return ["", "", ""] if program is None else [program.name, f"{len(program.step.step.ops):,}", program.time]

    newest = pair.second or pair.first
    assert newest is not None
    return [*cells(pair.first), *([*cells(pair.second), pair.change] if compared else []), newest.reason]
