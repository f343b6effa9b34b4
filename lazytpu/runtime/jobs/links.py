"""The sockets of XLA's collectives. Shutting them down is the only way to end a collective that waits for a stopped
process (XLA's gloo waits for half an hour).

They are shut down for reading only, and stay open. gloo notifies pending receives that a connection has ended, but
forgets pending sends (`gloo/transport/tcp/pair.cc`: `signalException` skips sends of unbound buffers). So a process
that sends to a socket that its peer has closed may wait forever.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

_OPEN = Path("/proc/self/fd")


def connections() -> dict[str, int]:
    """Return the file descriptors of this process's sockets by a name that is unique over time. Empty where the system
    does not list them."""
    descriptors: dict[str, int] = {}
    for number in os.listdir(_OPEN) if _OPEN.exists() else ():
        with suppress(OSError):  # closed meanwhile
            name = os.readlink(_OPEN / number)
            if name.startswith("socket:"):
                descriptors[name] = int(number)
    return descriptors


class Links:
    """The connections that the first collective of some processes opens. Construct it before that collective, and call
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
        """Note that the first collective has ended, and determine its connections."""
        if self._own is None:
            self._own = set(connections()) - self._before

    def cut(self) -> None:
        """Shut the connections down, so that receives fail at once. The peers notice only after `close`."""
        for name, number in connections().items():
            if name in self._own if self._own is not None else name not in self._before:
                with suppress(OSError):  # closed meanwhile
                    self._kept.append(os.dup(number))
                    with socket.socket(fileno=os.dup(number)) as duplicate:
                        if duplicate.family in (socket.AF_INET, socket.AF_INET6):
                            duplicate.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the connections that were shut down."""
        while self._kept:
            os.close(self._kept.pop())
