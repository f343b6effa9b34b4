"""The thread that launches cuts with collectives, in their order, when the other processes have come to them.

While it waits for them, the script may need a value that a cut behind computes without them: they may be waiting for
what the script does with it. Such a value is launched ahead, by whoever waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, Protocol

from lazytpu.interrupts import interruptible, wait_for
from lazytpu.runtime.buffers.deferred import DeferredBuffer, is_waiting

MOST = 4  # cuts that wait, or are being launched: each holds its inputs
PATIENCE = 0.1  # seconds before a value is launched ahead, which computes it twice: mostly the others come soon
AGAIN = 1.0  # seconds at most before that is tried again: it may have needed a collective that was launched since then
NEVER = "lazytpu: the program that computes this value was not launched: the process has left its job, or ends"


class Launch(Protocol):
    """One cut that waits."""

    def run(self) -> None:
        """Launch its programs. Raises nothing: it notes what failed."""
        ...

    def inputs(self) -> Sequence[Any]:
        """The buffers that it may still take."""
        ...

    def is_awaited(self) -> bool:
        """Whether the script has waited for all of its collectives."""
        ...

    def makes(self, buffer: DeferredBuffer) -> bool:
        """Whether it computes what this buffer stands for."""
        ...

    def launch_ahead(self, buffer: DeferredBuffer, before: Callable[[DeferredBuffer], None]) -> None:
        """Launch what computes a buffer out of turn, unless that needs a collective, after calling `before` with each
        of its inputs that waits. Raises nothing that will fail in its turn as well."""
        ...


class Launcher:
    """Cuts, oldest first; the first one is being launched. `order` is held from where a cut says what its collectives
    are until it is the last, so that both have one order. Whoever launches something of them is `_at_work`."""

    def __init__(self) -> None:
        self.order = threading.RLock()
        self._cuts: deque[Launch] = deque()
        self.count = 0  # of all cuts that were ever put
        self._changed = threading.Condition()
        self._at_work = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_own_thread(self) -> bool:
        """Whether it is its thread that asks."""
        return threading.current_thread() is self._thread

    def cuts(self) -> list[Launch]:
        """What waits, or is being launched."""
        return list(self._cuts)

    @property
    def is_busy(self) -> bool:
        """Whether any cut is not launched yet."""
        return bool(self._cuts)

    def put(self, cut: Launch) -> None:
        """Launch a cut after those before it."""
        with self._changed:
            self._cuts.append(cut)
            self.count += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="lazytpu launcher", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def notify(self) -> None:
        """A deferred buffer has changed."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, buffer: DeferredBuffer) -> None:
        """Wait until a deferred buffer is kept or failed. If that takes long, what it needs is launched ahead.
        Raises RuntimeError when it will never be."""
        seconds = PATIENCE
        while not self._wait(lambda: not is_waiting(buffer), seconds):
            seconds = min(AGAIN, 2 * seconds)
            if self._at_work.acquire(blocking=False):  # its thread waits for other processes
                try:
                    self._launch_ahead(buffer)
                finally:
                    self._at_work.release()
        if is_waiting(buffer):
            raise RuntimeError(NEVER)

    def _launch_ahead(self, buffer: DeferredBuffer) -> None:
        cut = next((cut for cut in self.cuts() if cut.makes(buffer)), None)
        if cut is not None:
            cut.launch_ahead(buffer, self._launch_ahead)

    @contextmanager
    def away(self) -> Iterator[None]:
        """While its thread waits for other processes, others may launch ahead."""
        self._at_work.release()
        try:
            yield
        finally:
            self._at_work.acquire()

    def drain(self, seconds: float | None = None, before: float = inf) -> None:
        """Wait until all cuts, or those before that number, are launched, or failed; at most so many seconds. Its own
        thread does not wait."""
        if self._cuts and not self.is_own_thread:
            self._wait(lambda: not self._cuts or self.count - len(self._cuts) >= before, seconds)

    def make_room(self) -> None:
        """Wait until there are not too many; not for a collective for which the script has not waited: others may come
        to that only after what the script does next."""
        if len(self._cuts) >= MOST:
            self._wait(lambda: len(self._cuts) < MOST or not self._is_awaited())

    def _is_awaited(self) -> bool:
        first = next(iter(self.cuts()), None)
        return first is None or first.is_awaited()

    @interruptible
    def _wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        with self._changed:
            return wait_for(self._changed, lambda: condition() or self._closed, seconds)

    def close(self, end: float) -> bool:
        """Launch nothing more, and wait for what is just being launched until `end` (time.monotonic()). Returns whether
        the thread has stopped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is None:
            return True
        self._thread.join(min(threading.TIMEOUT_MAX, max(0.0, end - time.monotonic())))
        return not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._cuts or self._closed)
                if self._closed:
                    return
                cut = self._cuts[0]
            with self._at_work:
                cut.run()
            del cut  # it holds the inputs
            with self._changed:
                self._cuts.popleft()
                self._changed.notify_all()
