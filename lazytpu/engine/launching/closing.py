"""The end of the process while the device runs or XLA compiles: wait briefly, then abandon both."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Sequence

from lazytpu.inspection.terminal import say
from lazytpu.runtime.exits import abandon_threads

AT_EXIT = 5.0  # seconds to wait: a program that is compiled by then is in the cache of the next process

Close = Callable[[float], bool]
"""Stops the engine's work on threads, waits for it until a `time.monotonic()` time, and returns whether it stopped."""


def close_at_exit(closes: Sequence[Close], seconds: float = AT_EXIT) -> None:
    """Call each of `closes` when the process exits, with `seconds` for all of them together."""
    process = os.getpid()

    def close() -> None:
        if os.getpid() != process:  # a forked child: the threads belong to its parent
            return
        end, done = time.monotonic() + seconds, False
        try:
            done = False not in [stop(end) for stop in closes]
        except (KeyboardInterrupt, SystemExit):  # a second interrupt: do not wait any longer
            say("interrupted: what still runs is left behind")
        finally:  # also if a handler raises another error, which Python prints
            if not done and not abandon_threads():
                say("threads cannot be left behind on this system: waiting for them")
                for stop in closes:
                    stop(float("inf"))

    atexit.register(close)
