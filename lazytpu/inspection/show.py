"""`lazytpu-show`: inspect dumps and the cache on disk.

    lazytpu-show dump FILE|DIR...     the text, coloured on a terminal
    lazytpu-show stats FILE|DIR...    ops by kind, arguments, what is overwritten, bytes
    lazytpu-show diff A B             what differs, regardless of value numbering and source lines
    lazytpu-show cost FILE|DIR        the cost on a TPU, without having one
    lazytpu-show lines FILE|DIR       the source lines of a step, most expensive first
    lazytpu-show graph FILE|DIR       the data flow, by source line or cluster; --dot for GraphViz
    lazytpu-show path FILE|DIR        the chain of ops that takes longest
    lazytpu-show clusters FILE|DIR    the functions that a step calls
    lazytpu-show passes FILE|DIR      what each pass does to a module; --diff PASS for the lines
    lazytpu-show why FILE|DIR...      why programs were compiled
    lazytpu-show html FILE|DIR        all of it as one HTML file
    lazytpu-show runs DIR [DIR]       all programs of a run with their reasons, or two runs side by side
    lazytpu-show cache                the compiled programs on disk; --verify, --clear
    lazytpu-show pack FILE            write them to one file, for another machine
    lazytpu-show unpack FILE          add the programs of such a file to the cache

Files are modules that LAZYTPU_DUMP wrote, in the lazytpu dialect or StableHLO. A folder is such a dump; commands for
one module take its largest. `diff` returns 1 if the modules differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from lazytpu.inspection import cached, libraries
from lazytpu.inspection.diff import diff, with_context
from lazytpu.inspection.files import modules
from lazytpu.inspection.highlight import console, mlir, table
from lazytpu.inspection.html import command as html
from lazytpu.inspection.html import runs
from lazytpu.inspection.step import commands as step
from lazytpu.inspection.textual import ModuleStats, stats
from lazytpu.inspection.tpu import command as cost
from lazytpu.options import options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script. Returns its exit status."""
    args = _parser().parse_args(arguments)
    try:
        options.check()
        return args.run(args)
    except (OSError, ValueError) as error:
        print(f"lazytpu-show: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "lazytpu-show", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = "dump|stats|diff|cost|lines|graph|path|clusters|passes|why|html|runs|cache|pack|unpack"
    commands = parser.add_subparsers(required=True, metavar=names)
    dump = commands.add_parser("dump", help="print modules")
    dump.add_argument("paths", nargs="+", type=Path, metavar="FILE|DIR")
    dump.set_defaults(run=_dump)
    counts = commands.add_parser("stats", help="count ops, arguments and bytes of modules")
    counts.add_argument("paths", nargs="+", type=Path, metavar="FILE|DIR")
    counts.set_defaults(run=_stats)
    compare = commands.add_parser("diff", help="compare two modules")
    compare.add_argument("first", type=Path)
    compare.add_argument("second", type=Path)
    compare.set_defaults(run=_diff)
    cost.add_command(commands)
    step.add_commands(commands)
    html.add_command(commands)
    runs.add_command(commands)
    cached.add_command(commands)
    libraries.add_commands(commands)
    return parser


def _dump(args: argparse.Namespace) -> int:
    out, paths = console(), modules(args.paths)
    for path in paths:
        if len(paths) > 1:
            out.print(Text(f"// {path}", style="bold"))
        out.print(mlir(path.read_text()))
    return 0


def _stats(args: argparse.Namespace) -> int:
    out = console()
    for path in modules(args.paths):
        counts = stats(path.read_text())
        out.print(_summary(path, counts), markup=False)
        kinds = table("op", "count", "bytes of results")
        for kind, (count, size) in sorted(counts.ops.items(), key=lambda item: (-item[1][0], item[0])):
            kinds.add_row(kind, f"{count:,}", f"{size:,}")
        out.print(kinds)
    return 0


def _summary(path: Path, counts: ModuleStats) -> str:
    total = sum(count for count, _ in counts.ops.values())
    return (
        f"{path}\n"
        f"ops        {total:,}\n"
        f"arguments  {counts.arguments:,} ({counts.argument_bytes:,} bytes)\n"
        f"overwritten by results  {counts.aliased:,} ({counts.aliased_bytes:,} bytes)\n"
        f"results    {counts.results:,} ({counts.result_bytes:,} bytes)\n"
    )


def _diff(args: argparse.Namespace) -> int:
    lines = diff(args.first.read_text(), args.second.read_text())
    out = console()
    for line in with_context(lines):
        if line is None:
            out.print(Text("...", style="dim"))
        else:
            out.print(Text(f"{line.sign} {line.text}", style={"-": "red", "+": "green"}.get(line.sign, "")))
    return int(any(line.sign != " " for line in lines))
