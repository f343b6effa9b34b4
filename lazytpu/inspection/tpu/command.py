"""`lazytpu-show cost`: the cost of a dumped program on a TPU."""

from __future__ import annotations

import argparse
import json
import re

from xdsl.utils.exceptions import ParseError

from lazytpu.inspection.commands import CACHE, FILE, Command, argument
from lazytpu.inspection.dumps import largest
from lazytpu.inspection.highlight import console
from lazytpu.inspection.stages import stages
from lazytpu.inspection.tpu.compiling import report_text
from lazytpu.options import options
from lazytpu.runtime.errors import CompileError, PlatformError

TOPOLOGY = "v6e:2x2"


def _run(args: argparse.Namespace) -> int:
    chosen, file = dict(_option(option) for option in args.option), largest(args.file)
    name = re.sub(r"^\d+-", "", file.name.partition(".")[0]) or "program"  # NNN-name.lazytpu.mlir
    try:
        with options(cache_dir=options.cache_dir if args.dir is None else args.dir), stages() as tell:
            tell(f"compiling {name} for {args.topology}")
            report = report_text(file.read_text(), args.topology, name=name, options=chosen)
    except (ParseError, CompileError, PlatformError) as error:
        raise ValueError(str(error)) from error
    if args.json:
        print(json.dumps(report.as_dict(), indent=1))
    elif (out := console()).is_terminal:
        out.print(report)
    else:
        print(report)
    return 0


def _option(text: str) -> tuple[str, bool | int | str]:
    name, _, value = text.partition("=")
    if value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    return name, int(value) if re.fullmatch(r"-?\d+", value) else value


COMMANDS = {
    "cost": Command(
        _run,
        "what a program would cost on a TPU, by the TPU's compiler",
        (
            FILE,
            argument("--topology", default=TOPOLOGY, metavar="NAME", help=f"the chips, default {TOPOLOGY}; v5p:2x2x1"),
            argument("--json", action="store_true", help="print all figures as JSON"),
            argument(
                "--option",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help="an option of XLA, such as xla_tpu_...=true",
            ),
            CACHE,
        ),
        "Compiles a module that LAZYTPU_DUMP wrote, in the lazytpu dialect (with source lines) or StableHLO, for a "
        "TPU, which this machine need not have, and reports its cost: see docs/tpu-report.md.",
    ),
}
