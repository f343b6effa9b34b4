"""A program being compiled in the background, as seen by the cuts that need it."""

from __future__ import annotations

import threading
import time

from lazytpu.engine.compiling.choice import Choice
from lazytpu.engine.compiling.prepared import Prepared
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.runtime.compiling.elsewhere import Ticket


class Job:
    """A program that a thread compiles by the strategy `way`. Once it is `done`, either `compiled` or `error` is set.

    - `live`, `donated`: the slots that it computes, and the inputs that it donates.
    - `what`, `reason`: its name, and why it is compiled.
    - `expected`: the seconds that a step will wait for it; `whole`: the seconds for the whole program, both at `load`
      (`costs.Busy`).
    - `late`: whether a cut continued without it. `behind`: whether no cut waits for it.
    - `meanwhile`: the program compiled quickly or in parts, when ready. `usable` is set then, or when the whole is
      done.
    - `rests`: whether the whole waits for a second step that needs it, as only then it pays.
    - `naps`: the number of rare steps for which it rests longer.
    - `queues`: whether it waits for its turn.
    - `ticket`: the ticket of the helper process, if that compiles it.
    """

    __slots__ = (
        "began", "behind", "compiled", "donated", "done", "error", "expected", "late", "live", "load", "making",
        "meanwhile", "naps", "number", "prepared", "queues", "reason", "rests", "thread", "ticket", "usable", "way",
        "what", "whole",
    )  # fmt: skip

    def __init__(self, prepared: Prepared, choice: Choice, whole: float):
        self.prepared: Prepared | None = prepared
        self.way = choice.way
        self.expected = choice.seconds
        self.whole = whole
        self.load = prepared.load
        self.live, self.donated = prepared.binding.live, prepared.binding.donated
        self.number = prepared.number
        self.what = f"program {prepared.number} {prepared.name} ({len(prepared.records):,} recorded ops)"
        self.making = prepared.making
        self.reason = prepared.making.entry.text
        self.began = time.perf_counter()
        self.done = threading.Event()
        self.usable = threading.Event()
        self.meanwhile: Compiled | None = None
        self.compiled: Compiled | None = None
        self.error: BaseException | None = None
        self.late = self.behind = False
        self.rests = False
        self.naps = 0
        self.queues = False
        self.thread: threading.Thread | None = None
        self.ticket: Ticket | None = None

    def fits(self, needed: frozenset[int], free: frozenset[int]) -> bool:
        """Return whether its program will compute the slots `needed` and donate no inputs but `free`."""
        if not self.done.is_set() and (self.thread is None or self.thread.ident is None):
            return False  # an interrupt prevented the start of its thread
        return needed.issubset(self.live) and self.donated <= free

    def handed(self, ticket: Ticket) -> None:
        """Note that the helper process compiles it."""
        self.ticket = ticket

    @property
    def seconds(self) -> float:
        """The seconds since it was started."""
        return time.perf_counter() - self.began
