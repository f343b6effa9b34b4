"""`lazytpu-show` dump, stats and diff: modules of a dump as text."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.text import Text

from lazytpu.inspection.commands import FILES, Command, argument
from lazytpu.inspection.diff import diff, with_context
from lazytpu.inspection.dumps import modules
from lazytpu.inspection.highlight import changed, mlir, show, table
from lazytpu.inspection.textual import stats


def _dump(args: argparse.Namespace) -> int:
    paths = modules(args.paths)
    for path in paths:
        if len(paths) > 1:
            show(Text(f"// {path}", style="bold"))
        show(mlir(path.read_text()))
    return 0


def _stats(args: argparse.Namespace) -> int:
    for path in modules(args.paths):
        counts = stats(path.read_text())
        total = sum(count for count, _ in counts.ops.values())
        kinds = sorted(counts.ops.items(), key=lambda item: (-item[1][0], item[0]))
        show(
            f"{path}\n"
            f"ops        {total:,}\n"
            f"arguments  {counts.arguments:,} ({counts.argument_bytes:,} bytes)\n"
            f"overwritten by results  {counts.aliased:,} ({counts.aliased_bytes:,} bytes)\n"
            f"results    {counts.results:,} ({counts.result_bytes:,} bytes)\n",
            table(("op", "count", "bytes of results"), [(kind, f"{n:,}", f"{size:,}") for kind, (n, size) in kinds]),
        )
    return 0


def _diff(args: argparse.Namespace) -> int:
    """Return 1 if the modules differ."""
    lines = diff(args.first.read_text(), args.second.read_text())
    show(*map(changed, with_context(lines)))
    return int(any(line.sign != " " for line in lines))


COMMANDS = {
    "dump": Command(_dump, "print modules", (FILES,)),
    "stats": Command(_stats, "count ops, arguments and bytes of modules", (FILES,)),
    "diff": Command(_diff, "compare two modules", (argument("first", type=Path), argument("second", type=Path))),
}
