"""Programs that another process of the job makes, which does not see this process's cache folder.

On one machine processes share a folder, and its locks keep two of them from compiling the same. Between machines the
job's own store does both (`lazytpu.distributed.programs`): the first process that lacks a program makes it, and the
others get its bytes, each into its own cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from lazytpu.runtime.cache.entry import Entry
from lazytpu.runtime.cache.store import store


class Peers(Protocol):
    """How bytes come from, and go to, processes with other cache folders."""

    def sought(self, kind: str, key: str, there: Callable[[], bool]) -> AbstractContextManager[Entry | None]:
        """An entry that another process makes or has made; waits for it until it is `there`, in the own folder, by
        somebody else. If it is not to be had, None: then this process makes it in the body, and the others are told at
        its end what has become of it, however it ends."""
        ...


PEERS: list[Peers] = []  # of this process: one, or none


@contextmanager
def sought(kind: str, key: str) -> Iterator[bool]:
    """Whether an entry that was not in the cache is there now, because a peer has made it. If not, the body makes it.

    Whoever has the lock of an entry must not seek it: the one that makes it in this folder waits for that lock.
    """
    if not PEERS or not store().writable():
        yield False
        return

    def there() -> bool:
        return store().has(kind, key)

    with PEERS[0].sought(kind, key, there) as entry:
        yield there() if entry is None else store().put(kind, key, entry.payload, entry.about)
