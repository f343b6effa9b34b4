"""`lazytpu-show html`: a dumped step as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lazytpu.inspection.about import About
from lazytpu.inspection.files import largest
from lazytpu.inspection.step.commands import add_generation, add_model, add_passes, load_passes, reason_of, written_with
from lazytpu.passes.generations import GENERATIONS


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
    from lazytpu.inspection.html.page import page  # imported here, because they import xDSL
    from lazytpu.inspection.step.history import history
    from lazytpu.inspection.step.model import Model
    from lazytpu.inspection.step.reading import read
    from lazytpu.passes.errors import PassError

    file = largest(args.file)
    text, name, changes = file.read_text(), file.name.partition(".")[0], []
    about, pipeline = About.parse(written_with(file, "about") or ""), None
    load_passes(args)
    if args.passes or file.name.endswith(".imported.mlir"):
        pipeline = args.passes or args.generation
        try:
            changes, text = history(text, pipeline, file.name)
        except PassError as error:
            raise ValueError(str(error)) from error
    cost = _cost(args, file, name.partition("-")[2] or name, "" if pipeline is None else args.passes)
    model = Model(read(text, name), GENERATIONS[args.generation])
    out: Path = args.output or file.with_name(f"{name}.html")
    html = page(model, changes, why=reason_of(file), cost=cost, about=about, pipeline=pipeline)
    out.write_text(html, encoding="utf-8")
    print(f"{out}: {out.stat().st_size:,} bytes, {len(model.step.ops):,} ops; open it in a browser")
    return 0


def _cost(args: argparse.Namespace, file: Path, name: str, passes: str | None) -> dict[str, Any] | None:
    """Return the program's part of the TPU compiler's report, from the file given or by compiling now; None to use the
    model's times."""
    from lazytpu.inspection.html.cost import program_of  # imported here, because they import xDSL and jax
    from lazytpu.inspection.tpu.compiling import ask
    from lazytpu.runtime.tpu.tpu_compiler import libtpu

    if args.cost is not None:
        return program_of(args.cost.read_text(), name)
    report = None if args.model else ask(file.read_text(), args.generation, name=name, passes=passes)
    return None if report is None else report.as_dict()["programs"][0] | {"compiler": f"libtpu {libtpu()}"}
