"""`lazytpu-show html`: a dumped step as one HTML file; `runs`: the programs of one or two runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from lazytpu.inspection.catalogue import load
from lazytpu.inspection.commands import COSTS, FILE, Command, argument, passes
from lazytpu.inspection.dumps import IMPORTED, written_with
from lazytpu.inspection.highlight import show, table
from lazytpu.inspection.html.page import page, rendered
from lazytpu.inspection.html.runs import Pair, RunProgram, about_of, paired, programs
from lazytpu.inspection.step.commands import costed_of


def _html(args: argparse.Namespace) -> int:
    load(args.load)
    costed = costed_of(args, IMPORTED, args.cost)
    file: Path = args.file
    out: Path = args.output or file.with_name(f"{costed.step.name}.html")
    out.write_text(page(costed, why=written_with(file, "why"), about=about_of(file)), encoding="utf-8")
    print(f"{out}: {out.stat().st_size:,} bytes, {len(costed.step.ops):,} ops; open it in a browser")
    return 0


def _runs(args: argparse.Namespace) -> int:
    folders = [folder for folder in (args.first, args.second) if folder]
    runs = [programs(folder, args.generation, by_model=args.model) for folder in folders]
    compared = len(runs) > 1
    pairs = paired(*runs) if compared else [Pair(program, None) for program in runs[0]]
    columns = ["program", "ops", "us"] + (["in the other run", "ops", "us", "change"] if compared else []) + ["why"]
    rows = [_row(pair, compared) for pair in pairs]
    if args.output is None:
        show(table(columns, rows, left=("program", "in the other run", "change", "why")))
        return 0
    args.output.mkdir(parents=True, exist_ok=True)
    for folder, run in zip(("first", "second"), runs, strict=False):
        for program in run:
            text = page(program.step, why=program.reason, about=about_of(program.file))
            (args.output / f"{folder}-{program.name}.html").write_text(text, encoding="utf-8")
    heading, source = " and ".join(map(str, folders)), runs[0][0].step.source
    index = args.output / "index.html"
    index.write_text(rendered("runs", columns=columns, rows=rows, heading=heading, source=source), encoding="utf-8")
    print(f"{index}: {len(pairs):,} programs; open it in a browser")
    return 0


def _row(pair: Pair, compared: bool) -> list[str]:
    def cells(program: RunProgram | None) -> list[str]:
        return ["", "", ""] if program is None else [program.name, f"{len(program.step.step.ops):,}", program.time]

    newest = pair.second or pair.first
    assert newest is not None
    return [*cells(pair.first), *([*cells(pair.second), pair.change] if compared else []), newest.reason]


COMMANDS = {
    "html": Command(
        _html,
        "a step as one HTML file: timeline, memory, graph, passes, ops",
        (
            FILE,
            argument("-o", "--output", type=Path, metavar="OUT", help="FILE with .html, by default"),
            *passes("those of --generation, whose times are shown"),
            argument(
                "--cost",
                type=Path,
                metavar="JSON",
                help="output of lazytpu-show cost --json FILE, instead of asking the compiler",
            ),
            *COSTS,
        ),
        "Writes one file that any browser opens, without a server. For NNN-name.imported.mlir it runs the passes and "
        "shows what each did; for NNN-name.lazytpu.mlir it shows the step as it was compiled.",
    ),
    "runs": Command(
        _runs,
        "all programs of a run with their reasons, or two runs side by side",
        (
            argument("first", type=Path, metavar="DIR"),
            argument("second", type=Path, nargs="?", metavar="DIR", help="another run, to compare with the first"),
            argument("-o", "--output", type=Path, metavar="DIR", help="write index.html and a page for each program"),
            *COSTS,
        ),
    ),
}
