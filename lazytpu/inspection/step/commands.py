"""`lazytpu-show` lines, path, clusters, graph, passes and why: views of a dumped step."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.text import Text

from lazytpu.inspection.catalogue import load
from lazytpu.inspection.commands import COSTS, FILE, FILES, Argument, Command, argument, passes
from lazytpu.inspection.dumps import COMPILED, IMPORTED, largest, written_with
from lazytpu.inspection.highlight import changed, show, table
from lazytpu.inspection.step.costs import CostedStep, costed, place_of, program_of, seconds_of
from lazytpu.inspection.step.graphs import as_dot, as_text, grouped
from lazytpu.inspection.step.history import history
from lazytpu.inspection.step.reading import StepOp
from lazytpu.options import options

SHOWN = 30  # rows: a screen
_ROWS = argument("-n", type=int, default=SHOWN, metavar="N", help=f"rows, {SHOWN} by default; 0 for all")


def costed_of(args: argparse.Namespace, kind: str, cost: Path | None = None) -> CostedStep:
    """Return the step of the command's file, whose path it sets, with its cost.

    An `.imported.mlir` goes through `--passes`, else the generation's; any other module is taken as it was compiled,
    unless there are `--passes`.
    """
    file = args.file = largest(args.file, kind)
    passes: str | None = getattr(args, "passes", None)
    if passes is None and not file.name.endswith(IMPORTED):
        passes = ""
    stem = file.name.partition(".")[0]
    known = None if cost is None else program_of(cost.read_text(), stem.partition("-")[2] or stem)
    return costed(file.read_text(), stem, args.generation, passes=passes, by_model=args.model, cost=known)


def _head(args: argparse.Namespace, step: CostedStep) -> str:
    least = "" if step.cost["complete"] else "at least "
    return f"{args.file.name}: {least}{_us(step.cost['seconds'])} us on a {args.generation}, by {step.source}"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f}"


def _share(seconds: float, step: CostedStep) -> str:
    """Return the percentage of the step, empty if the time of the step is not known."""
    total = step.cost["seconds"] if step.cost["complete"] else None
    return f"{100 * seconds / total:.0f}" if total else ""


def _few(texts: Iterable[str], count: int) -> str:
    """Return the first of some texts."""
    listed = list(texts)
    return ", ".join(listed[:count]) + (", ..." if len(listed) > count else "")


def _lines(args: argparse.Namespace, step: CostedStep) -> None:
    sizes: Counter[str] = Counter()
    for op in step.step.all_ops:
        sizes[op.place] += op.bytes
    times = [(place, seconds_of(ops)) for place, ops in list(step.by_place.items())[: args.n or None]]
    lines = [
        (place or "no source line", _us(s), _share(s, step), f"{step.count_of[place]:,}", f"{sizes[place]:,}")
        for place, s in times
    ]
    show(_head(args, step), table(("line", "us", "%", "ops", "bytes of results"), lines))
    modules = [
        (f"{'  ' * m.depth}{m.path}", _us(m.seconds), _share(m.seconds, step), _us(m.forward), _us(m.backward))
        for m in step.modules[: args.n or None]
    ]
    if modules:
        show("", table(("module", "us", "%", "forward", "backward"), modules))


def _path(args: argparse.Namespace, step: CostedStep) -> None:
    path = step.cost["path"]
    length = sum(entry["seconds"] for entry in path)
    by_name = {op["name"]: op for op in step.cost["ops"]}
    shown = sorted(range(len(path)), key=lambda at: -path[at]["seconds"])[: args.n or None]
    kernels = [(path[at], by_name.get(path[at]["op"], {"bound": "", "line": None})) for at in sorted(shown)]
    rows = [(of["op"], f"{1e6 * of['seconds']:,.2f}", op["bound"], place_of(op["line"])) for of, op in kernels]
    show(
        f"{_head(args, step)}; the longest chain takes {_us(length)} us in {len(path):,} kernels",
        table(("kernel", "us", "bound by", "line"), rows),
    )
    if len(shown) < len(path):
        show(f"{len(path) - len(shown):,} cheaper ones are left out (-n 0 shows all)")


def _clusters(args: argparse.Namespace, step: CostedStep) -> None:
    if not step.step.clusters:
        raise ValueError(f"{args.file} calls no function; `lazytpu-opt -p cluster-fusion {args.file}` makes clusters")
    inside: dict[str, list[StepOp]] = defaultdict(list)
    for op in step.step.ops:
        inside[op.cluster].append(op)
    calls: dict[str, list[list[StepOp]]] = defaultdict(list)
    for label in step.step.clusters:
        calls[label.partition(" ")[0]].append(inside[label])
    times = {name: [sum(step.op_seconds[op.number] for op in ops) for ops in of] for name, of in calls.items()}
    rows = [
        (
            name, f"{len(times[name]):,}", f"{len(calls[name][0]):,}", _us(times[name][0]), _us(sum(times[name])),
            _few(dict.fromkeys(op.place for op in calls[name][0] if op.place), 3),
        )
        for name in sorted(calls, key=lambda name: -sum(times[name]))[: args.n or None]
    ]  # fmt: skip
    outside = max(0.0, step.cost["seconds"] - sum(map(sum, times.values())))
    show(
        _head(args, step),
        f"{sum(map(len, calls.values())):,} calls of {len(calls):,} functions; {_us(outside)} us are outside them",
        table(("function", "calls", "ops", "us per call", "us", "lines"), rows, left=("function", "lines")),
    )


def _graph(args: argparse.Namespace, step: CostedStep) -> None:
    graph = grouped(step, args.by or ("cluster" if step.step.clusters else "line"))
    print(as_dot(graph, args.file.name) if args.dot else "".join(f"{line}\n" for line in as_text(graph)), end="")


def _passes(args: argparse.Namespace) -> int:
    load(args.load)
    file = largest(args.file, IMPORTED)
    changes, _ = history(file.read_text(), args.passes or options.target or "cpu", file.name)
    rows = [
        (
            change.name, f"{1e3 * change.seconds:.1f}", f"{change.ops_after:,}",
            f"{change.ops_after - change.ops_before:+,}", f"{change.changed:,}",
            _few((f"{count:+,} {kind}" for kind, count in change.kinds.items()), 4),
        )
        for change in changes
    ]  # fmt: skip
    show(table(("pass", "ms", "ops", "", "lines changed", "kinds"), rows, left=("pass", "kinds")))
    ran = dict.fromkeys(change.name for change in changes)
    if unknown := sorted(set(args.diff) - {"all", *ran}):
        raise ValueError(f"no pass named {', '.join(unknown)} ran; those that did are {', '.join(ran)}")
    for change in changes:
        if change.name in args.diff or "all" in args.diff:
            show(Text(f"\n{change.name}", style="bold"), *map(changed, change.lines))
    return 0


def _why(args: argparse.Namespace) -> int:
    files = [file for path in args.paths for file in (sorted(path.glob("*.why.txt")) if path.is_dir() else [path])]
    reasons = [(file, reason) for file in files if (reason := written_with(file, "why")) is not None]
    if not reasons:
        raise ValueError("there is no NNN-name.why.txt; LAZYTPU_DUMP=DIR writes one for each program")
    show(*[f"{file.name.partition('.')[0]}: {reason}" for file, reason in reasons])
    return 0


def _view(
    view: Callable[[argparse.Namespace, CostedStep], None], summary: str, *arguments: Argument, kind: str = IMPORTED
) -> Command:
    """Return the command that shows a step with its cost."""

    def run(args: argparse.Namespace) -> int:
        view(args, costed_of(args, kind))
        return 0

    times = "Times come from the TPU's compiler if it is installed, else from a model of the chip."
    return Command(run, summary, (FILE, *COSTS, *arguments), f"{summary[0].upper()}{summary[1:]}. {times}")


COMMANDS = {
    "lines": _view(_lines, "the source lines and the modules of a step, most expensive first", _ROWS),
    "path": _view(_path, "the chain of ops that takes longest, regardless of what runs in parallel", _ROWS),
    "clusters": _view(_clusters, "the functions that a step calls, most expensive first", _ROWS, kind=COMPILED),
    "graph": _view(
        _graph,
        "the graph of a step, by source line, cluster or op",
        argument("--by", help="line, cluster or op; by default cluster if there are any, else line"),
        argument("--dot", action="store_true", help="for GraphViz: | dot -Tsvg -o step.svg"),
    ),
    "passes": Command(
        _passes,
        "what each pass of a pipeline does to a module",
        (
            argument("file", type=Path, metavar="FILE|DIR", help="NNN-name.imported.mlir of LAZYTPU_DUMP"),
            *passes("the pipeline of LAZYTPU_TARGET or CPU"),
            argument(
                "--diff", metavar="PASS", action="append", default=[],
                help='print the changes of PASS; "all" for every pass',
            ),
        ),
    ),
    "why": Command(_why, "why programs were compiled", (FILES,)),
}  # fmt: skip
