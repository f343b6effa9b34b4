"""The sockets by which XLA's collectives reach the other processes: shutting them down is the only way to end a
collective that waits for a process that has stopped (XLA's gloo waits for half an hour).

They are shut down for reading alone, and stay open: gloo tells what waits to receive that a connection has ended, but
forgets what it has still to send (`gloo/transport/tcp/pair.cc`: `signalException` passes over sends of unbound
buffers), so a process that sends to a socket that its peer has closed may wait for ever.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

_OPEN = Path("/proc/self/fd")


def connections() -> dict[str, int]:
    """The file descriptors of the sockets of this process, by names that no other socket ever has. Empty where the
    system does not list them."""
    found: dict[str, int] = {}
    for number in os.listdir(_OPEN) if _OPEN.exists() else ():
        with suppress(OSError):  # closed since
            name = os.readlink(_OPEN / number)
            if name.startswith("socket:"):
                found[name] = int(number)
    return found


class Links:
    """The connections between some processes: those that their first collective opens. Make it before that, and call
    `complete` after it."""

    def __init__(self) -> None:
        self._before = connections().keys()
        self._own: set[str] | None = None
        self._kept: list[int] = []

    @property
    def is_complete(self) -> bool:
        """Whether the first collective has ended."""
        return self._own is not None

    def complete(self) -> None:
        """The first collective has ended."""
        if self._own is None:
            self._own = set(connections()) - self._before

    def cut(self) -> None:
        """Shut the connections down: what waits for them fails at once. The other ends see nothing of it before
        `close`."""
        for name, number in connections().items():
            if name in self._own if self._own is not None else name not in self._before:
                with suppress(OSError):  # closed since
                    self._kept.append(os.dup(number))
                    with socket.socket(fileno=os.dup(number)) as duplicate:
                        if duplicate.family in (socket.AF_INET, socket.AF_INET6):
                            duplicate.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Let go of what was cut."""
        while self._kept:
            os.close(self._kept.pop())
