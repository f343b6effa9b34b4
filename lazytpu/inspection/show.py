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
from importlib import import_module

from lazytpu.options import options

MODULES = {
    "texts": "dump stats diff",
    "tpu.command": "cost",
    "step.commands": "lines graph path clusters passes why",
    "html.command": "html runs",
    "cached": "cache",
    "libraries": "pack unpack",
}
"""The module with the `COMMANDS` of each name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script. Returns its exit status."""
    args = _parser(sys.argv[1:] if arguments is None else arguments).parse_args(arguments)
    try:
        options.check()
        return args.run(args)
    except (OSError, ValueError) as error:
        print(f"lazytpu-show: {error}", file=sys.stderr)
        return 2


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the commands among these arguments, of all if there are none: some import xDSL and jax."""
    parser = argparse.ArgumentParser(
        "lazytpu-show", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = {name: module for module, names in MODULES.items() for name in names.split()}
    commands = parser.add_subparsers(required=True, metavar="|".join(names))
    for name in [name for name in names if name in arguments] or names:
        import_module(f"lazytpu.inspection.{names[name]}").COMMANDS[name].add(commands, name)
    return parser
