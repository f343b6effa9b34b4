"""The end of the process while the device runs or XLA compiles: a short wait, then both are left behind."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Sequence

from lazytpu.inspection.terminal import say
from lazytpu.runtime.exits import abandon_threads

AT_EXIT = 5.0  # seconds to wait: a program that is compiled by then is in the cache of the next process

Close = Callable[[float], bool]
"""Stops what threads do for the engine, waits for that until a time of `time.monotonic()`, and returns whether they
stopped."""


def close_at_exit(closes: Sequence[Close], seconds: float = AT_EXIT) -> None:
    """Call each of `closes` when the process ends, with as much time for all of them together."""
    process = os.getpid()

    def close() -> None:
        if os.getpid() != process:  # a forked child: the threads are its parent's
            return
        end, done = time.monotonic() + seconds, False
        try:
            done = False not in [stop(end) for stop in closes]
        except (KeyboardInterrupt, SystemExit):  # whoever asks for the end again does not want to wait
            say("interrupted: what still runs is left behind")
        finally:  # also when a handler raises something else, which Python shows
            if not done and not abandon_threads():
                say("threads cannot be left behind on this system: waiting for them")
                for stop in closes:
                    stop(float("inf"))

    atexit.register(close)
