"""`lazytpu-opt`: run passes over a module of the dialect.

    lazytpu-opt -p cse,dce 007-train_step.lazytpu.mlir
    lazytpu-opt -p "constant-folding{limit=64},dce" FILE      options of a pass, separated by spaces
    lazytpu-opt -p v6e --time-passes FILE                     the pipeline of a target: cpu, gpu, tpu, v5e, v5p, ...
    lazytpu-opt -p default FILE                               that of LAZYTPU_TARGET, by default the CPU's
    lazytpu-opt --load my_pass.py -p my-pass FILE             a pass of your own (docs/writing-a-pass.md)
    lazytpu-opt -p cpu -t stablehlo FILE                      what XLA would get
    lazytpu-opt --list-passes                                 every pass: its phase, targets and options

It is xDSL's `xdsl-opt` restricted to the lazytpu dialect and passes, with all of its options. Files are read and
printed with source lines: its output is valid input.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.targets import get_all_targets
from xdsl.utils.exceptions import DiagnosticException, ParseError
from xdsl.utils.target import Target
from xdsl.xdsl_opt_main import xDSLOptMain

from lazytpu.inspection.catalogue import catalogue, load
from lazytpu.ir.dialect import LAZYTPU
from lazytpu.ir.text import print_module
from lazytpu.options import options
from lazytpu.passes.errors import PassError
from lazytpu.passes.pipeline import apply, check_order, expand, parse
from lazytpu.passes.registry import passes


@dataclass(frozen=True)
class StableHloTarget(Target):
    """An output target: the module lowered to StableHLO."""

    name = "stablehlo"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from lazytpu.lowering import emit, stablehlo_text

        output.write(stablehlo_text(emit(module)))


class LazytpuOptMain(xDSLOptMain):
    """xDSL's driver with the lazytpu dialect and its passes."""

    def register_all_dialects(self) -> None:
        for dialect in (Builtin, Func, LAZYTPU):
            self.ctx.register_dialect(dialect.name, lambda dialect=dialect: dialect)

    def register_all_passes(self) -> None:
        for name, entry in passes().items():
            self.register_pass(name, entry.load)

    def register_all_targets(self) -> None:
        self.available_targets["mlir"] = get_all_targets()["mlir"]
        self.available_targets["stablehlo"] = lambda: StableHloTarget

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.prog = "lazytpu-opt"
        arg_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        super().register_all_arguments(arg_parser)
        _add_own(arg_parser)

    def setup_pipeline(self) -> None:
        text = (options.target or "cpu") if self.args.passes == "default" else self.args.passes
        # For an unknown pass, its error lists the known ones.
        parse(text)
        self.args.passes = expand(text)
        super().setup_pipeline()

    def apply_passes(self, prog: ModuleOp) -> None:
        """Run the passes in order; an error names the pass and the op at which it failed."""
        sequence, callback = self.pipeline.passes, self.pipeline.callback
        check_order(prog, "the module given to the pipeline")
        for before, pass_ in zip((None, *sequence), (*sequence, None), strict=True):
            if callback is not None:
                callback(before, prog, pass_)
            if pass_ is not None:
                apply(pass_, self.ctx, prog)
                check_order(prog, f"the module after pass {pass_.name!r}")

    def output_resulting_program(self, prog: ModuleOp) -> str:
        printed_by_xdsl = self.args.print_op_generic or self.args.print_no_properties or self.args.syntax_highlight
        if self.args.target == "mlir" and not printed_by_xdsl:
            return print_module(prog)
        return super().output_resulting_program(prog)


def _add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="FILE|MODULE",
        help="import a Python file or module first, for the passes that it registers; may be repeated",
    )
    parser.add_argument(
        "--list-passes", action="store_true", help="print every pass with its phase in the pipeline and what it does"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script. Returns its exit status."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_own(first)
    args, _ = first.parse_known_args(arguments)
    try:
        options.check()
        load(args.load)
        if args.list_passes:
            print(catalogue())
        else:
            LazytpuOptMain(__doc__ or "", arguments).run()
    except (OSError, ValueError, NotImplementedError, ParseError, DiagnosticException, PassError) as error:
        print(f"lazytpu-opt: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        return 1
    return 0
