"""`lazytpu-show` lines, path, clusters, graph, passes and why: views of a dumped step."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from lazytpu.inspection.files import COMPILED, IMPORTED, largest
from lazytpu.inspection.highlight import console, table
from lazytpu.options import options
from lazytpu.passes.generations import GENERATIONS

if TYPE_CHECKING:
    from lazytpu.inspection.step.costs import CostedStep
    from lazytpu.inspection.step.reading import StepOp

GENERATION = "v6e"
SHOWN = 30  # rows: a screen


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to a parser."""
    _add(commands, "lines", _lines, "the source lines and the modules of a step, most expensive first")
    _add(commands, "path", _path, "the chain of ops that takes longest, regardless of what runs in parallel")
    _add(commands, "clusters", _clusters, "the functions that a step calls, most expensive first", COMPILED)
    graph = _add(commands, "graph", _graph, "the graph of a step, by source line, cluster or op")
    graph.add_argument("--by", default=None, help="line, cluster or op; by default cluster if there are any, else line")
    graph.add_argument("--dot", action="store_true", help="for GraphViz: | dot -Tsvg -o step.svg")
    passes = commands.add_parser("passes", help="what each pass of a pipeline does to a module")
    passes.add_argument("file", type=Path, metavar="FILE|DIR", help="NNN-name.imported.mlir of LAZYTPU_DUMP")
    add_passes(passes, default="the pipeline of LAZYTPU_TARGET or CPU")
    passes.add_argument(
        "--diff", metavar="PASS", action="append", help='print the changes of PASS; "all" for every pass'
    )
    passes.set_defaults(run=_passes)
    why = commands.add_parser("why", help="why programs were compiled")
    why.add_argument("paths", nargs="+", type=Path, metavar="FILE|DIR")
    why.set_defaults(run=_why)


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace, CostedStep], int],
    summary: str,
    kind: str = IMPORTED,
) -> argparse.ArgumentParser:
    times = "Times come from the TPU's compiler if it is installed, else from a model of the chip."
    parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}. {times}")
    parser.add_argument("file", type=Path, metavar="FILE|DIR", help="a module of a dump; for DIR its largest")
    add_generation(parser)
    add_model(parser)
    if name != "graph":
        parser.add_argument("-n", type=int, default=SHOWN, metavar="N", help=f"rows, {SHOWN} by default; 0 for all")
    parser.set_defaults(run=lambda args: run(args, costed_of(args, kind)))
    return parser


def costed_of(args: argparse.Namespace, kind: str, cost: Path | None = None) -> CostedStep:
    """Return the step of the command's file, whose path it sets, with its cost.

    An `.imported.mlir` goes through `--passes`, else the generation's; any other module is taken as it was compiled,
    unless there are `--passes`.
    """
    from lazytpu.inspection.step.costs import costed, program_of  # imported here, because it imports xDSL and jax

    file = args.file = largest(args.file, kind)
    passes: str | None = getattr(args, "passes", None)
    if passes is None and not file.name.endswith(IMPORTED):
        passes = ""
    stem = file.name.partition(".")[0]
    known = None if cost is None else program_of(cost.read_text(), stem.partition("-")[2] or stem)
    return costed(file.read_text(), stem, args.generation, passes=passes, by_model=args.model, cost=known)


def _head(args: argparse.Namespace, step: CostedStep) -> str:
    least = "" if step.cost["complete"] else "at least "
    return f"{args.file.name}: {least}{1e6 * step.cost['seconds']:,.1f} us on a {args.generation}, by {step.source}"


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


def _lines(args: argparse.Namespace, step: CostedStep) -> int:
    from lazytpu.inspection.step.costs import seconds_of

    sizes: dict[str, int] = defaultdict(int)
    for op in step.step.all_ops:
        sizes[op.place] += op.bytes
    total = step.cost["seconds"] if step.cost["complete"] else None
    lines = table("line", "us", "%", "ops", "bytes of results")
    for place, ops in list(step.by_place.items())[: args.n or None]:
        taken = seconds_of(ops)
        share = f"{100 * taken / total:.0f}" if total else ""
        figures = f"{1e6 * taken:,.1f}", share, f"{step.count_of[place]:,}", f"{sizes[place]:,}"
        lines.add_row(place or "no source line", *figures)
    out = console()
    out.print(_head(args, step), markup=False)
    out.print(lines)
    modules = table("module", "us", "%", "forward", "backward")
    for module in step.modules[: args.n or None]:
        share = f"{100 * module.seconds / total:.0f}" if total else ""
        times = [f"{1e6 * seconds:,.1f}" for seconds in (module.seconds, module.forward, module.backward)]
        modules.add_row(f"{'  ' * module.depth}{module.path}", times[0], share, *times[1:])
    if step.modules:
        out.print("", modules, sep="\n")
    return 0


def _path(args: argparse.Namespace, step: CostedStep) -> int:
    from lazytpu.inspection.step.costs import place_of

    path = step.cost["path"]
    length = sum(entry["seconds"] for entry in path)
    out = console()
    out.print(
        f"{_head(args, step)}; the longest chain takes {1e6 * length:,.1f} us in {len(path):,} kernels", markup=False
    )
    by_name = {op["name"]: op for op in step.cost["ops"]}
    kernels = table("kernel", "us", "bound by", "line")
    shown = sorted(range(len(path)), key=lambda at: -path[at]["seconds"])[: args.n or None]
    for at in sorted(shown):
        op = by_name.get(path[at]["op"], {"bound": "", "line": None})
        kernels.add_row(path[at]["op"], f"{1e6 * path[at]['seconds']:,.2f}", op["bound"], place_of(op["line"]))
    out.print(kernels)
    if len(shown) < len(path):
        out.print(f"{len(path) - len(shown):,} cheaper ones are left out (-n 0 shows all)", markup=False)
    return 0


def _clusters(args: argparse.Namespace, step: CostedStep) -> int:
    calls: dict[str, list[str]] = {}
    for label in step.step.clusters:
        calls.setdefault(label.partition(" ")[0], []).append(label)
    if not calls:
        raise ValueError(f"{args.file} calls no function; `lazytpu-opt -p cluster-fusion {args.file}` makes clusters")
    inside: dict[str, list[StepOp]] = defaultdict(list)
    for op in step.step.ops:
        inside[op.cluster].append(op)
    seconds = {label: sum(step.op_seconds[op.number] for op in ops) for label, ops in inside.items()}
    functions = table("function", "calls", "ops", "us per call", "us", "lines", left=("lines",))
    costliest = sorted(calls, key=lambda name: -sum(seconds[label] for label in calls[name]))
    for name in costliest[: args.n or None]:
        labels = calls[name]
        lines = dict.fromkeys(op.place for op in inside[labels[0]] if op.place)
        total = sum(seconds[label] for label in labels)
        functions.add_row(
            name, f"{len(labels):,}", f"{len(inside[labels[0]]):,}", f"{1e6 * seconds[labels[0]]:,.1f}",
            f"{1e6 * total:,.1f}", ", ".join(list(lines)[:3]) + (", ..." if len(lines) > 3 else ""),
        )  # fmt: skip
    out = console()
    count = sum(map(len, calls.values()))
    outside = max(0.0, 1e6 * (step.cost["seconds"] - sum(seconds[label] for label in step.step.clusters)))
    out.print(_head(args, step), markup=False)
    out.print(f"{count:,} calls of {len(calls):,} functions; {outside:,.1f} us are outside them", markup=False)
    out.print(functions)
    return 0


def _graph(args: argparse.Namespace, step: CostedStep) -> int:
    from lazytpu.inspection.step.graphs import as_dot, as_text, grouped

    graph = grouped(step, args.by or ("cluster" if step.step.clusters else "line"))
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
    args.file = largest(args.file, IMPORTED)
    try:
        changes, _ = history(args.file.read_text(), args.passes or options.target or "cpu", args.file.name)
    except PassError as error:
        raise ValueError(str(error)) from error
    out, passes = console(), table("pass", "ms", "ops", "", "lines changed", "kinds", left=("kinds",))
    for change in changes:
        kinds = [f"{count:+,} {kind}" for kind, count in change.kinds.items()]
        passes.add_row(
            change.name, f"{1e3 * change.seconds:.1f}", f"{change.ops_after:,}",
            f"{change.ops_after - change.ops_before:+,}", f"{change.changed:,}",
            ", ".join(kinds[:4]) + (", ..." if len(kinds) > 4 else ""),
        )  # fmt: skip
    out.print(passes)
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
