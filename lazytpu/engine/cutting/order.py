"""The time at which a cut is launched."""

from __future__ import annotations

from typing import Any

from lazytpu.engine.cutting.agreement import Agreement, Alone
from lazytpu.engine.cutting.cut import Cut
from lazytpu.engine.cutting.strategies import Strategy
from lazytpu.engine.errors.undo import Lost
from lazytpu.trace.pending import Trace


class Order:
    """Launches each cut at once, in a process without peers; `Deferral` may defer it. `agreement` coordinates
    collectives with other ranks."""

    def __init__(self) -> None:
        self.agreement: Agreement = Alone()

    @property
    def is_behind(self) -> bool:
        """Whether cuts wait to be launched."""
        return False

    def drain(self) -> None:
        """Wait until all cuts were launched or failed."""

    def awaits(self, trace: Trace) -> bool:
        """Return whether inputs of a trace are results of deferred cuts."""
        return False

    def begin(self, trace: Trace) -> None:
        """Prepare for the cut of a trace. Raise the error of a failed dependency; the trace is lost then."""

    def launch(self, strategy: Strategy, cut: Cut) -> Strategy | None:
        """Run a cut or defer it. Return the strategy to continue with instead, or None."""
        return strategy.run(cut)

    def end(self, trace: Trace) -> None:
        """Finish the cut of a trace."""

    def poison(self, lost: Lost, error: BaseException) -> None:
        """Make every read of the lost values raise `error` again."""
        lost.poison(error)

    def restore(self, buffers: list[Any]) -> None:
        """Replace failed deferred buffers by the buffers with the contents before the failed cuts."""
