"""`lazytpu-opt`: run passes over a module of the dialect.

    lazytpu-opt -p cse,dce 007-train_step.lazytpu.mlir
    lazytpu-opt -p default --time-passes FILE          the pipeline of a cut
    lazytpu-opt -t stablehlo FILE                      what XLA would get

It is xDSL's `xdsl-opt` with the lazytpu dialect and passes only, so all of its options are here. Files are read and
printed with their source lines.
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

from lazytpu.ir.dialect import LAZYTPU
from lazytpu.ir.text import print_module
from lazytpu.passes.failure import PassError
from lazytpu.passes.pipeline import DEFAULT, PASSES, parse


@dataclass(frozen=True)
class StableHloTarget(Target):
    """The module lowered to StableHLO."""

    name = "stablehlo"

    def emit(self, ctx: Context, module: ModuleOp, output: IO[str]) -> None:
        from lazytpu.lowering import emit, stablehlo_text

        output.write(stablehlo_text(emit(module)))


class LazytpuOptMain(xDSLOptMain):
    """xDSL's driver, knowing the lazytpu dialect and its passes."""

    def register_all_dialects(self) -> None:
        for dialect in (Builtin, Func, LAZYTPU):
            self.ctx.register_dialect(dialect.name, lambda dialect=dialect: dialect)

    def register_all_passes(self) -> None:
        for name, factory in PASSES.items():
            self.register_pass(name, factory)

    def register_all_targets(self) -> None:
        self.available_targets["mlir"] = get_all_targets()["mlir"]
        self.available_targets["stablehlo"] = lambda: StableHloTarget

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.prog = "lazytpu-opt"
        arg_parser.formatter_class = argparse.RawDescriptionHelpFormatter
        super().register_all_arguments(arg_parser)

    def setup_pipeline(self) -> None:
        if self.args.passes == "default":
            self.args.passes = DEFAULT
        parse(self.args.passes)  # names the known passes when one is not
        super().setup_pipeline()

    def output_resulting_program(self, prog: ModuleOp) -> str:
        printed_by_xdsl = self.args.print_op_generic or self.args.print_no_properties or self.args.syntax_highlight
        if self.args.target == "mlir" and not printed_by_xdsl:
            return print_module(prog)
        return super().output_resulting_program(prog)


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns its exit status."""
    try:
        LazytpuOptMain(__doc__ or "", arguments).run()
    except (OSError, ValueError, NotImplementedError, ParseError, DiagnosticException, PassError) as error:
        print(f"lazytpu-opt: {error}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        return 1
    return 0
