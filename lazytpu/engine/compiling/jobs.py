"""A program that is being compiled in the background, as the cuts see it that want it."""

from __future__ import annotations

import threading
import time

from lazytpu.engine.compiling.choice import Choice
from lazytpu.engine.compiling.compiler import Prepared
from lazytpu.engine.launching.compiled import Compiled
from lazytpu.runtime.compiling.elsewhere import Ticket


class Job:
    """A program that a thread compiles, the `way` that was chosen. Once it is `done`, it is `compiled`, or `error` says
    why not.

    It computes the slots `live` of its plan and takes the memory of the inputs `donated`. `what` names it, `reason`
    says why it is made, `expected` how many seconds a step will wait for it, and `whole` for the whole program, on a
    machine whose `load` is that (`costs.Busy`). `late` says that a cut went on without it.

    `meanwhile` is the same program compiled quickly or in parts, once that is there: `usable` is set from then on, and
    also when the whole is done. It `rests` until a second step wants it: only then the whole is worth compiling. A
    step that comes rarely lets it rest for `naps` steps more. It `queues` while it waits for its turn then.
    `ticket` is that of the helper process, if it compiles the program.
    """

    __slots__ = (
        "began", "compiled", "donated", "done", "error", "expected", "late", "live", "load", "making", "meanwhile",
        "naps", "number", "prepared", "queues", "reason", "rests", "thread", "ticket", "usable", "way", "what", "whole",
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
        self.late = False
        self.rests = False
        self.naps = 0
        self.queues = False
        self.thread: threading.Thread | None = None
        self.ticket: Ticket | None = None

    def fits(self, needed: frozenset[int], free: frozenset[int]) -> bool:
        """Whether its program will compute these slots, and take the memory of no inputs but these."""
        if not self.done.is_set() and (self.thread is None or self.thread.ident is None):
            return False  # an interrupt came before its thread began
        return needed.issubset(self.live) and self.donated <= free

    def handed(self, ticket: Ticket) -> None:
        """The helper process compiles it."""
        self.ticket = ticket

    @property
    def seconds(self) -> float:
        """How long ago it was begun."""
        return time.perf_counter() - self.began
