"""The output of LAZYTPU_DEBUG on standard error.

1: each compilation, and each program loaded from the cache. 2: also the time of each pass. 3: also the IR before and
after the pipeline. 4: the IR after every pass. A process that neither prints nor compiles imports neither rich nor
xDSL.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lazytpu.inspection.terminal import UNREAD
from lazytpu.options import options

if TYPE_CHECKING:
    from rich.text import Text
    from xdsl.dialects.builtin import ModuleOp

    from lazytpu.passes.pipeline import Observer, PassRecord


def because(number: int, name: str, reason: str) -> None:
    """Level 1: print why program `number` is about to be compiled or loaded."""
    _line(f"program {number} {name} is made because: {reason}")


def refused(number: int, name: str, cause: str) -> None:
    """Level 1: print that program `number`, for many sizes, is not compiled, and why."""
    _line(f"program {number} {name} is not made: no program for many sizes: {cause}")


def compiled(number: int, name: str, records: int, milliseconds: float) -> None:
    """Level 1: print that XLA compiled program `number` of a trace of `records` ops."""
    _line(f"compiled program {number} {name}: {records:,} recorded ops, {milliseconds:,.0f} ms in XLA")


def loaded(number: int, name: str, records: int, milliseconds: float) -> None:
    """Level 1: print that program `number` of a trace of `records` ops was loaded from the cache on disk."""
    _line(f"loaded program {number} {name}: {records:,} recorded ops, {milliseconds:,.0f} ms from the cache")


def tuned(name: str, times: Sequence[tuple[str, float]]) -> None:
    """Level 1: print the seconds that a program takes on a TPU under each of several pipelines, by the cost report."""
    _line(f"tuned {name}: {', '.join(f'{pipeline} {1e6 * seconds:,.1f} us' for pipeline, seconds in times)}")


def observer(name: str) -> Observer | None:
    """Return a function to call after each pass over the program `name`; None below level 2."""
    if options.debug < 2:
        return None

    def observe(record: PassRecord, module: ModuleOp) -> None:
        if record.number == 0:
            _line(f"program {name}: {record.ops_after:,} ops imported")
        else:
            change = record.ops_after - record.ops_before
            _line(f"  {record.name:<18}{1e3 * record.seconds:9.1f} ms {record.ops_after:>8,} ops ({change:+,})")
            for note in record.notes:
                _line(f"    {note}")
        if options.debug >= 4 or (options.debug == 3 and record.number in (0, record.total)):
            where = "before the passes" if record.number == 0 else f"after {record.name}"
            from lazytpu.inspection.highlight import mlir
            from lazytpu.ir.text import print_module

            _line(f"program {name} {where}:", mlir(print_module(module)))

    return observe


def _line(text: str, *further: Text) -> None:
    """Print a line, and texts after it, from level 1 on."""
    if options.debug >= 1:
        from lazytpu.inspection.highlight import console

        with suppress(*UNREAD):
            console(stderr=True).print(f"lazytpu: {text}", *further, sep="\n")
