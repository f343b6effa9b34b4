"""When a cut is launched."""

from __future__ import annotations

from typing import Any

from lazytpu.engine.cutting.agreement import Agreement, Alone
from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.cutting.strategies import Strategy
from lazytpu.engine.errors.undo import Lost
from lazytpu.trace.recorder import Trace


class Order:
    """When cuts are launched: at once, in a process without others. See `Deferral`. `agreement` is how collectives wait
    for the other processes."""

    def __init__(self) -> None:
        self.agreement: Agreement = Alone()

    @property
    def is_behind(self) -> bool:
        """Whether cuts wait to be launched."""
        return False

    def drain(self) -> None:
        """Wait until everything cut is launched, or has failed."""

    def awaits(self, trace: Trace) -> bool:
        """Whether inputs of a trace are results of cuts that wait to be launched."""
        return False

    def begin(self, trace: Trace) -> None:
        """Called before a trace is cut. Raises what it depends on, if that failed; then the trace is lost."""

    def launch(self, strategy: Strategy, cut: Cut) -> Strategy | None:
        """Run a cut, or let it run later; or return the strategy to go on with instead."""
        return strategy.run(cut)

    def end(self, trace: Trace) -> None:
        """Called when a trace was cut."""

    def poison(self, lost: Lost, error: BaseException) -> None:
        """Let every read of what a trace has lost raise `error` again."""
        lost.poison(error)

    def restore(self, buffers: list[Any]) -> None:
        """Put what was there before cuts that failed in place of their deferred values."""
