"""`lazytpu-show cost`: the cost of a dumped program on a TPU."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from lazytpu.inspection.files import largest
from lazytpu.inspection.highlight import console
from lazytpu.options import options

TOPOLOGY = "v6e:2x2"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `cost` to a parser of commands."""
    parser = commands.add_parser(
        "cost",
        help="what a program would cost on a TPU, by the TPU's compiler",
        description="Compiles a module that LAZYTPU_DUMP wrote, in the lazytpu dialect (with source lines) or "
        "StableHLO, for a TPU, which this machine need not have, and reports its cost: see docs/tpu-report.md.",
    )
    parser.add_argument("file", type=Path, metavar="FILE|DIR", help="a module of a dump; for DIR its largest")
    parser.add_argument(
        "--topology", default=TOPOLOGY, metavar="NAME", help=f"the chips, default {TOPOLOGY}; v5p:2x2x1"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of XLA, such as xla_tpu_...=true"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="the cache (default: that of LAZYTPU_CACHE_DIR)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command. Raises ValueError for an invalid file or topology, or if libtpu fails."""
    from xdsl.utils.exceptions import ParseError

    from lazytpu.inspection.stages import Stages
    from lazytpu.inspection.tpu.compiling import report_text  # imported here, because it imports jax and xDSL
    from lazytpu.runtime.errors import CompileError, PlatformError

    chosen, file = dict(_option(option) for option in args.option), largest(args.file)
    try:
        with options(cache_dir=options.cache_dir if args.dir is None else args.dir), Stages() as tell:
            tell(f"compiling {_name(file)} for {args.topology}")
            report = report_text(file.read_text(), args.topology, name=_name(file), options=chosen)
    except (ParseError, CompileError, PlatformError) as error:
        raise ValueError(str(error)) from error
    if args.json:
        print(json.dumps(report.as_dict(), indent=1))
    elif (out := console()).is_terminal:
        out.print(report)
    else:
        print(report)
    return 0


def _name(path: Path) -> str:
    """Return the program's name in a dump: NNN-name.lazytpu.mlir."""
    return re.sub(r"^\d+-", "", path.name.partition(".")[0]) or "program"


def _option(text: str) -> tuple[str, bool | int | str]:
    name, _, value = text.partition("=")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    return name, int(value) if re.fullmatch(r"-?\d+", value) else value
