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
        sizes = stats(path.read_text())
        kinds = sorted(sizes.ops.items(), key=lambda item: (-len(item[1]), item[0]))
        show(
            f"{path}\n"
            f"ops        {sum(map(len, sizes.ops.values())):,}\n"
            f"arguments  {len(sizes.arguments):,} ({sum(sizes.arguments):,} bytes)\n"
            f"overwritten by results  {len(sizes.aliased):,} ({sum(sizes.aliased):,} bytes)\n"
            f"results    {len(sizes.results):,} ({sum(sizes.results):,} bytes)\n",
            table(("op", "count", "bytes of results"), [(kind, f"{len(of):,}", f"{sum(of):,}") for kind, of in kinds]),
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
