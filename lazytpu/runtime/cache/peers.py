"""Programs that another process of the job makes, which does not see this process's cache folder.

On one machine processes share a folder, and its locks keep two of them from compiling the same. Between machines the
job's own store does both (`lazytpu.distributed.programs`): the first process that lacks a program makes it, and the
others get its bytes, each into its own cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lazytpu.runtime.cache.entry import Entry
from lazytpu.runtime.cache.store import store


class Peers(Protocol):
    """How bytes come from, and go to, processes with other cache folders."""

    def receive(self, kind: str, key: str, there: Callable[[], bool]) -> Entry | None:
        """An entry that another process makes or has made; waits for it until it is `there`, in the own folder, by
        somebody else. None if this process is the first to ask, or the other one has failed."""
        ...

    def share(self, kind: str, key: str, entry: Entry | None) -> None:
        """Give the others an entry that was made here; None if that failed."""
        ...


PEERS: list[Peers] = []  # of this process: one, or none


def receive(kind: str, key: str) -> bool:
    """Whether an entry that was not in the cache is there now, because a peer has made it. If not, this process makes
    it, and has to call `share` then, whatever comes of it."""
    if not PEERS or not store().writable():
        return False

    def there() -> bool:
        return store().has(kind, key)

    entry = PEERS[0].receive(kind, key, there)
    return there() if entry is None else store().put(kind, key, entry.payload, entry.about)


def share(kind: str, key: str) -> None:
    """Tell the peers what has become of an entry that they may wait for."""
    if PEERS and store().writable():
        PEERS[0].share(kind, key, store().get(kind, key) if store().has(kind, key) else None)
