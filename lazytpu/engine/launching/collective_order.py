"""The order in which a rank runs its collectives, whichever threads launch them.

On the wire, only its members and their order identify a collective. A TPU runs programs in the order of their launches.
XLA's CPU client orders only the programs of one thread: a program whose inputs are ready runs at once, ahead of
programs that another thread launched and that wait for their inputs. Collectives of different members may overtake each
other: threads of two ranks may launch them in different orders, and would wait for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lazytpu.runtime.errors import RunError
from lazytpu.runtime.xla import client

T = TypeVar("T")
Members = tuple[int, ...]
_ORDERED = ("tpu", "gpu")  # platforms that run programs in the order of their launches


@dataclass(slots=True)
class _Last:
    """The last launch of a collective of some members: its thread and its status."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.Thread | None = None
    status: Any = None


class CollectiveOrder:
    """Lets a thread launch a collective once the last one of another thread with the same members is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[Members, _Last] = {}

    def run(self, groups: Iterable[Members], launch: Callable[[], tuple[T, Any]]) -> tuple[T, Any]:
        """Call `launch`, and return its results and its status, an array that is ready when its collectives are done.
        `groups` has the ranks of each of them."""
        if client.platform() in _ORDERED:
            return launch()
        thread = threading.current_thread()
        with ExitStack() as locked:
            with self._lock:  # two threads get the same object for new members
                of_groups = [self._last.setdefault(members, _Last()) for members in sorted(set(groups))]
            for last in of_groups:  # sorted: all threads lock in one order
                locked.enter_context(last.lock)
                if last.thread not in (None, thread):
                    with suppress(RunError):  # an error is raised by whoever reads the results
                        client.wait([last.status])
            results, status = launch()
            for last in of_groups:
                last.thread, last.status = thread, status
        return results, status
