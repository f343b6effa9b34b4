"""Programs compiled by peers: processes of the same job that do not share this process's cache folder.

On one machine, processes share a folder, and its locks keep two of them from compiling the same program. Between
machines the job's own store does both (`lazytpu.distributed.programs`). The first process that lacks a program compiles
it. The others receive its bytes, each into its own cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from lazytpu.runtime.cache.entry import Entry
from lazytpu.runtime.cache.store import store


class Peers(Protocol):
    """Exchange of entries with processes that have other cache folders."""

    def sought(self, kind: str, key: str, there: Callable[[], bool]) -> AbstractContextManager[Entry | None]:
        """Return the entry that a peer has compiled or is compiling, after waiting for it. The wait ends when `there`
        says that the entry is in the local folder. If no peer provides it, return None: the caller compiles in the
        body, and the peers are notified of the outcome at its end, even if it raises."""
        ...


PEERS: list[Peers] = []  # at most one for this process


@contextmanager
def sought(kind: str, key: str) -> Iterator[bool]:
    """Give whether a missing entry is in the cache now, since a peer has compiled it. If not, the body has to compile
    it.

    Do not call it while holding the lock of the entry: the process that compiles it in this folder waits for that lock.
    """
    if not PEERS or not store().writable():
        yield False
        return

    def there() -> bool:
        return store().has(kind, key)

    with PEERS[0].sought(kind, key, there) as entry:
        yield there() if entry is None else store().put(kind, key, entry.payload, entry.about)
