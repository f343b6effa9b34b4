"""`lazytpu-show` lines, path, clusters, graph, passes and why: views of a dumped step."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from lazytpu.inspection.files import COMPILED, IMPORTED, largest
from lazytpu.inspection.highlight import console
from lazytpu.options import options
from lazytpu.passes.generations import GENERATIONS

if TYPE_CHECKING:
    from lazytpu.inspection.step.model import Model
    from lazytpu.inspection.step.reading import StepOp

GENERATION = "v6e"
SHOWN = 30


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    lines = _add(commands, "lines", _lines, "the source lines of a step, most expensive first")
    add_model(lines)
    _add(commands, "path", _path, "the chain of ops that takes longest, regardless of what runs in parallel")
    _add(commands, "clusters", _clusters, "the functions that a step calls, most expensive first")
    graph = _add(commands, "graph", _graph, "the graph of a step, by source line, cluster, kernel or op")
    graph.add_argument(
        "--by", default=None, help="line, cluster, kernel or op; by default cluster if there are any, else line"
    )
    graph.add_argument("--dot", action="store_true", help="for GraphViz: | dot -Tsvg -o step.svg")
    passes = commands.add_parser("passes", help="what each pass of a pipeline does to a module")
    passes.add_argument("file", type=Path, metavar="FILE|DIR", help="NNN-name.imported.mlir of LAZYTPU_DUMP")
    add_passes(passes, default="the pipeline of LAZYTPU_TARGET or CPU")
    passes.add_argument(
        "--diff", metavar="PASS", action="append", help='print the changes of PASS; "all" for every pass'
    )
    passes.set_defaults(run=lambda args: _passes(_with_module(args, IMPORTED)))
    why = commands.add_parser("why", help="why programs were compiled")
    why.add_argument("paths", nargs="+", type=Path, metavar="FILE|DIR")
    why.set_defaults(run=_why)


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
) -> argparse.ArgumentParser:
    times = "Times come from a model of the chip; lazytpu-show cost asks the TPU's compiler."
    if name == "lines":
        times = "Times come from the TPU's compiler if it is installed, else from a model of the chip."
    parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}. {times}")
    parser.add_argument("file", type=Path, metavar="FILE|DIR", help="a module of a dump; for DIR its largest")
    add_generation(parser)
    if name != "graph":
        parser.add_argument("-n", type=int, default=SHOWN, metavar="N", help=f"rows, {SHOWN} by default; 0 for all")
    # `lines` invokes the compiler, which runs passes of its own.
    kind = IMPORTED if name == "lines" else COMPILED
    parser.set_defaults(run=lambda args: run(_with_module(args, kind)))
    return parser


def _with_module(args: argparse.Namespace, kind: str) -> argparse.Namespace:
    """Return `args` with the module that its path stands for."""
    args.file = largest(args.file, kind)
    return args


def add_generation(parser: argparse.ArgumentParser) -> None:
    """Add `--generation` to the parser of a command."""
    parser.add_argument(
        "--generation", default=GENERATION, choices=list(GENERATIONS), help=f"TPU generation, {GENERATION} by default"
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add `--model` to the parser of a command."""
    parser.add_argument("--model", action="store_true", help="do not ask the TPU's compiler, even if it is installed")


def add_passes(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `--passes` and `--load` to the parser of a command."""
    parser.add_argument("-p", "--passes", help=f"as for lazytpu-opt; by default {default}")
    parser.add_argument("--load", action="append", default=[], metavar="FILE|MODULE", help="import passes first")


def load_passes(args: argparse.Namespace) -> None:
    """Import the passes that `--load` names. Raises ValueError for a source without passes."""
    if args.load:
        from lazytpu.inspection.catalogue import load  # imported here, because it imports xDSL

        for source in args.load:
            load(source)


def _model(args: argparse.Namespace) -> Model:
    from lazytpu.inspection.step.model import Model  # imported here, because it imports xDSL
    from lazytpu.inspection.step.reading import read

    return Model(read(args.file.read_text(), args.file.name), GENERATIONS[args.generation])


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _lines(args: argparse.Namespace) -> int:
    model = _model(args)
    counts: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    for op in model.step.all_ops:
        counts[op.place] += 1
        sizes[op.place] += op.bytes
    total, seconds, by = _times(args, model)
    table = _table("line", "us", "%", "ops", "bytes of results")
    costliest = sorted({**dict.fromkeys(counts, 0.0), **seconds}, key=lambda place: -seconds.get(place, 0.0))
    for place in costliest[: args.n or None]:
        taken = seconds.get(place, 0.0)
        share = f"{100 * taken / total:.0f}" if total else ""
        table.add_row(
            place or "no source line", f"{1e6 * taken:,.1f}", share, f"{counts[place]:,}", f"{sizes[place]:,}"
        )
    out = console()
    out.print(f"{args.file.name}: {by}", markup=False)
    out.print(table)
    return 0


def _times(args: argparse.Namespace, model: Model) -> tuple[float | None, dict[str, float], str]:
    """Return (total seconds, None if incomplete; seconds by line; a sentence with the total and its source)."""
    from lazytpu.inspection.tpu.compiling import ask  # imported here, because it imports jax

    name, generation = args.file.name, args.generation
    report = None if args.model else ask(args.file.read_text(), generation, name=name)
    if report is None:
        return model.seconds, model.by_line, f"{1e6 * model.seconds:,.1f} us on a {generation}, by the model"
    (program,) = report.programs
    lines = {str(line or ""): sum(cost.seconds for cost in costs) for line, costs in program.by_line.items()}
    least = "" if report.complete else "at least "
    by = f"{least}{1e6 * report.seconds:,.1f} us on a {generation}, by the TPU's compiler"
    return report.seconds if report.complete else None, lines, by


def _path(args: argparse.Namespace) -> int:
    model = _model(args)
    path = model.critical_path
    length = sum(kernel.seconds for kernel in path)
    out = console()
    out.print(
        f"{args.file.name}: {1e6 * model.seconds:,.1f} us in order on a {args.generation}, by the model; the longest "
        f"chain takes {1e6 * length:,.1f} us in {len(path):,} kernels",
        markup=False,
    )
    table = _table("kernel", "us", "bound by", "ops", "line")
    shown = {kernel.number for kernel in sorted(path, key=lambda kernel: -kernel.seconds)[: args.n or None]}
    for kernel in path:
        if kernel.number in shown:
            row = (f"{1e6 * kernel.seconds:,.2f}", kernel.bound, f"{len(kernel.ops):,}", kernel.main.place)
            table.add_row(f"{kernel.number} {kernel.main.kind}", *row)
    out.print(table)
    if len(shown) < len(path):
        out.print(f"{len(path) - len(shown):,} cheaper ones are left out (-n 0 shows all)", markup=False)
    return 0


def _clusters(args: argparse.Namespace) -> int:
    model = _model(args)
    calls: dict[str, list[str]] = {}
    for label in model.step.clusters:
        calls.setdefault(label.partition(" ")[0], []).append(label)
    if not calls:
        raise ValueError(f"{args.file} calls no function; `lazytpu-opt -p cluster-fusion {args.file}` makes clusters")
    inside: dict[str, list[StepOp]] = defaultdict(list)
    for op in model.step.ops:
        inside[op.cluster].append(op)
    seconds = {label: sum(model.op_seconds[op.number] for op in ops) for label, ops in inside.items()}
    table = _table("function", "calls", "ops", "us per call", "us", "lines")
    table.columns[-1].justify = "left"
    costliest = sorted(calls, key=lambda name: -sum(seconds[label] for label in calls[name]))
    for name in costliest[: args.n or None]:
        labels = calls[name]
        lines = dict.fromkeys(op.place for op in inside[labels[0]] if op.place)
        total = sum(seconds[label] for label in labels)
        table.add_row(
            name, f"{len(labels):,}", f"{len(inside[labels[0]]):,}", f"{1e6 * seconds[labels[0]]:,.1f}",
            f"{1e6 * total:,.1f}", ", ".join(list(lines)[:3]) + (", ..." if len(lines) > 3 else ""),
        )  # fmt: skip
    out = console()
    count = sum(map(len, calls.values()))
    outside = max(0.0, 1e6 * (model.seconds - sum(seconds[label] for label in model.step.clusters)))
    out.print(f"{count:,} calls of {len(calls):,} functions; {outside:,.1f} us are outside them", markup=False)
    out.print(table)
    return 0


def _graph(args: argparse.Namespace) -> int:
    from lazytpu.inspection.step.graphs import as_dot, as_text, grouped

    model = _model(args)
    graph = grouped(model, args.by or ("cluster" if model.step.clusters else "line"))
    if args.dot:
        print(as_dot(graph, args.file.name), end="")
        return 0
    for line in as_text(graph):
        print(line)
    return 0


def _passes(args: argparse.Namespace) -> int:
    from lazytpu.inspection.step.history import history
    from lazytpu.passes.errors import PassError

    load_passes(args)
    try:
        changes, _ = history(args.file.read_text(), args.passes or options.target or "cpu", args.file.name)
    except PassError as error:
        raise ValueError(str(error)) from error
    out, table = console(), _table("pass", "ms", "ops", "", "lines changed", "kinds")
    table.columns[-1].justify = "left"
    for change in changes:
        kinds = [f"{count:+,} {kind}" for kind, count in change.kinds.items()]
        table.add_row(
            change.name, f"{1e3 * change.seconds:.1f}", f"{change.ops_after:,}",
            f"{change.ops_after - change.ops_before:+,}", f"{change.changed:,}",
            ", ".join(kinds[:4]) + (", ..." if len(kinds) > 4 else ""),
        )  # fmt: skip
    out.print(table)
    names = args.diff or []
    unknown = set(names) - {"all"} - {change.name for change in changes}
    if unknown:
        ran = ", ".join(dict.fromkeys(change.name for change in changes))
        raise ValueError(f"no pass named {', '.join(sorted(unknown))} ran; those that did are {ran}")
    for change in changes:
        if change.name in names or "all" in names:
            out.print(Text(f"\n{change.name}", style="bold"))
            for line in change.lines:
                style = {"-": "red", "+": "green"}.get(line.sign, "") if line else "dim"
                out.print(Text(f"{line.sign} {line.text}" if line else "...", style=style))
    return 0


def written_with(path: Path, suffix: str) -> str | None:
    """Return the text of NNN-name.WHAT.txt next to a dumped file; None if it does not exist."""
    stem = re.sub(r"\.(imported|lazytpu|stablehlo)?\.?(mlir|json)$", "", path.name)
    file = path.with_name(f"{stem}.{suffix}.txt")
    return file.read_text().rstrip() if file.exists() else None


def reason_of(path: Path) -> str | None:
    """Return why the program of a dumped file was compiled; None if the dump has no reason."""
    return written_with(path, "why")


def _why(args: argparse.Namespace) -> int:
    shown = 0
    for path in args.paths:
        for file in sorted(path.glob("*.why.txt")) if path.is_dir() else [path]:
            reason = file.read_text().rstrip() if file.name.endswith(".why.txt") else reason_of(file)
            if reason is not None:
                console().print(f"{file.name.partition('.')[0]}: {reason}", markup=False)
                shown += 1
    if not shown:
        raise ValueError("there is no NNN-name.why.txt; LAZYTPU_DUMP=DIR writes one for each program")
    return 0
