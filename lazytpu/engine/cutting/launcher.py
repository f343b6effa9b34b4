"""The thread that launches cuts with collectives, in their order, once the other ranks have reached them.

While it waits for other ranks, the script may need a value that a later cut computes without collectives. The other
ranks may in turn wait for that value's effects. So the waiting thread launches the computation of such a value ahead of
its turn.
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

MOST = 4  # deferred cuts, including the one being launched: each holds its inputs
PATIENCE = 0.1  # seconds before a value is launched ahead, which computes it twice: mostly the other ranks arrive soon
AGAIN = 1.0  # maximal seconds between attempts: the value may need a collective that is launched meanwhile
NEVER = "lazytpu: the program that computes this value was not launched: the process has left its job, or ends"


class Launch(Protocol):
    """One deferred cut."""

    def run(self) -> None:
        """Launch its programs. Raise nothing, but record errors."""
        ...

    def inputs(self) -> Sequence[Any]:
        """Return the buffers that it may still read or donate."""
        ...

    def is_awaited(self) -> bool:
        """Return whether the script has waited for all of its collectives."""
        ...

    def makes(self, buffer: DeferredBuffer) -> bool:
        """Return whether it computes the value of this deferred buffer."""
        ...

    def launch_ahead(self, buffer: DeferredBuffer, before: Callable[[DeferredBuffer], None]) -> None:
        """Compute a deferred buffer out of turn, unless that needs a collective.

        Call `before` first with each input that is still deferred. Errors that will occur again in turn are not raised.
        """
        ...


class Launcher:
    """Launches deferred cuts, oldest first; the first one is being launched.

    A cut holds `order` from the announcement of its collectives until it is enqueued, so that both have the same order.
    A thread that launches parts of deferred cuts holds `_at_work`.
    """

    def __init__(self) -> None:
        self.order = threading.RLock()
        self._cuts: deque[Launch] = deque()
        self.count = 0  # of all cuts ever enqueued
        self._changed = threading.Condition()
        self._at_work = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_own_thread(self) -> bool:
        """Whether the current thread is the launching thread."""
        return threading.current_thread() is self._thread

    def cuts(self) -> list[Launch]:
        """Return the deferred cuts, including the one being launched."""
        return list(self._cuts)

    @property
    def is_busy(self) -> bool:
        """Whether any cut is not launched yet."""
        return bool(self._cuts)

    def put(self, cut: Launch) -> None:
        """Enqueue a cut, and start the thread if needed."""
        with self._changed:
            self._cuts.append(cut)
            self.count += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="lazytpu launcher", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def notify(self) -> None:
        """Wake up waiting threads after a deferred buffer was set or failed."""
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, buffer: DeferredBuffer) -> None:
        """Wait until a deferred buffer is set or has failed. After `PATIENCE` seconds, compute it ahead of its turn.
        Raise RuntimeError if it will never be set."""
        seconds = PATIENCE
        while not self._wait(lambda: not is_waiting(buffer), seconds):
            seconds = min(AGAIN, 2 * seconds)
            if self._at_work.acquire(blocking=False):  # the launching thread waits for other ranks
                try:
                    self._launch_ahead(buffer)
                finally:
                    self._at_work.release()
        if is_waiting(buffer):
            raise RuntimeError(NEVER)

    def _launch_ahead(self, buffer: DeferredBuffer) -> None:
        """Compute a deferred buffer ahead of its turn, if its cut is still enqueued."""
        cut = next((cut for cut in self.cuts() if cut.makes(buffer)), None)
        if cut is not None:
            cut.launch_ahead(buffer, self._launch_ahead)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Let other threads launch ahead while the launching thread waits for other ranks."""
        self._at_work.release()
        try:
            yield
        finally:
            self._at_work.acquire()

    def drain(self, seconds: float | None = None, before: float = inf) -> None:
        """Wait until all cuts, or those before number `before`, were launched or failed, for at most `seconds`. Return
        at once on the launching thread."""
        if self._cuts and not self.is_own_thread:
            self._wait(lambda: not self._cuts or self.count - len(self._cuts) >= before, seconds)

    def make_room(self) -> None:
        """Wait while there are too many deferred cuts.

        Do not wait for a collective that the script has not waited for: other ranks may reach it only after the
        script's next actions.
        """
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
        """Stop launching, and wait for the current launch until `end` (time.monotonic()). Return whether the thread has
        stopped."""
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
            del cut  # the reference keeps inputs alive
            with self._changed:
                self._cuts.popleft()
                self._changed.notify_all()
