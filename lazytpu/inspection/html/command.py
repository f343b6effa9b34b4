"""`lazytpu-show html`: a dumped step as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from lazytpu.inspection.about import About
from lazytpu.inspection.files import IMPORTED
from lazytpu.inspection.step.commands import (
    add_generation,
    add_model,
    add_passes,
    costed_of,
    load_passes,
    reason_of,
    written_with,
)


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `html` to a parser of commands."""
    parser = commands.add_parser(
        "html",
        help="a step as one HTML file: timeline, memory, graph, passes, ops",
        description="Writes one file that any browser opens, without a server. For NNN-name.imported.mlir it runs the "
        "passes and shows what each did; for NNN-name.lazytpu.mlir it shows the step as it was compiled.",
    )
    parser.add_argument("file", type=Path, metavar="FILE|DIR", help="a module of a dump; for DIR its largest")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="FILE with .html, by default")
    add_passes(parser, default="those of --generation, whose times are shown")
    parser.add_argument(
        "--cost",
        type=Path,
        metavar="JSON",
        help="output of lazytpu-show cost --json FILE, instead of asking the compiler",
    )
    add_generation(parser)
    add_model(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises ValueError for invalid files."""
    from lazytpu.inspection.html.page import page  # imported here, because it imports xDSL

    load_passes(args)
    step = costed_of(args, IMPORTED, args.cost)
    file: Path = args.file
    about = About.parse(written_with(file, "about") or "")
    out: Path = args.output or file.with_name(f"{step.step.name}.html")
    out.write_text(page(step, why=reason_of(file), about=about), encoding="utf-8")
    print(f"{out}: {out.stat().st_size:,} bytes, {len(step.step.ops):,} ops; open it in a browser")
    return 0
