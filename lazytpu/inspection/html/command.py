"""`lazytpu-show html`: a dumped step as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lazytpu.inspection.about import About
from lazytpu.inspection.files import largest
from lazytpu.inspection.step.commands import add_generation, add_model, add_passes, load_passes, reason_of, written_with
from lazytpu.passes.generations import GENERATIONS

if TYPE_CHECKING:
    from lazytpu.inspection.html.cost import Cost


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `html` to a parser of commands."""
    made = commands.add_parser(
        "html",
        help="a step as one HTML file: timeline, memory, graph, passes, ops",
        description="Writes one file that any browser opens, without a server. From NNN-name.imported.mlir it runs the "
        "passes, and shows what each did; from NNN-name.lazytpu.mlir it shows the step as it was compiled.",
    )
    made.add_argument("file", type=Path, metavar="FILE|DIR", help="a module of a dump; the largest of DIR")
    made.add_argument("-o", "--output", type=Path, metavar="OUT", help="FILE with .html, by default")
    add_passes(made, default="those of --generation, whose times are shown")
    made.add_argument(
        "--cost", type=Path, metavar="JSON", help="what lazytpu-show cost --json FILE printed, in place of asking"
    )
    add_generation(made)
    add_model(made)
    made.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """The command; raises ValueError for what is wrong with the files."""
    from lazytpu.inspection.html.page import page  # here: these load xDSL
    from lazytpu.inspection.step.history import history
    from lazytpu.inspection.step.model import Model
    from lazytpu.inspection.step.reading import read
    from lazytpu.passes.errors import PassError

    file = largest(asked.file)
    text, name, changes = file.read_text(), file.name.partition(".")[0], []
    about, pipeline = About.parse(written_with(file, "about") or ""), None
    load_passes(asked)
    if asked.passes or file.name.endswith(".imported.mlir"):
        pipeline = asked.passes or asked.generation
        try:
            changes, text = history(text, pipeline, file.name)
        except PassError as error:
            raise ValueError(str(error)) from error
    cost = _cost(asked, file, name.partition("-")[2] or name, "" if pipeline is None else asked.passes)
    model = Model(read(text, name), GENERATIONS[asked.generation])
    out: Path = asked.output or file.with_name(f"{name}.html")
    html = page(model, changes, why=reason_of(file), cost=cost, about=about, pipeline=pipeline)
    out.write_text(html, encoding="utf-8")
    print(f"{out}: {out.stat().st_size:,} bytes, {len(model.step.ops):,} ops; open it in a browser")
    return 0


def _cost(asked: argparse.Namespace, file: Path, name: str, passes: str | None) -> Cost | None:
    """What the TPU's compiler says of what is shown: in the file that was given, or asked now; None for the model's
    times."""
    from lazytpu.inspection.html.cost import Cost  # here: these load xDSL and jax
    from lazytpu.inspection.tpu.compiling import ask
    from lazytpu.runtime.tpu_compiler import libtpu

    if asked.cost is not None:
        return Cost.parse(asked.cost.read_text(), name)
    report = None if asked.model else ask(file.read_text(), asked.generation, name=name, passes=passes)
    return None if report is None else Cost(report.as_dict()["programs"][0], f"libtpu {libtpu()}")
