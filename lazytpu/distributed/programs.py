"""Each program is compiled once in a job, also on machines that share no cache folder: its bytes go through the store
by which the ranks have met. (JAX does the same with `jax_share_binary_between_hosts`.)

The first rank that lacks a program claims it there by a counter, so nobody waits for a rank that does not need it.
Bytes that every folder has got are taken out of the store.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable
from typing import Any

from lazytpu.runtime.cache.entry import Entry, decode, encode
from lazytpu.runtime.cache.peers import PEERS, Peers
from lazytpu.runtime.cache.store import PATIENCE, store

TICK = 0.02  # seconds between looks at the store
PART = 4 << 20  # bytes of one value: torch's server closes the connection of whoever sends 8 MiB
NOT_TO_BE_HAD = 0


class Shared(Peers):
    """Programs of a job whose ranks have so many cache `folders`, in its store `common`."""

    def __init__(self, common: Any, folders: int, patience: float = PATIENCE):
        # A connection of its own: another thread may wait for something in the job's, which waits for this program.
        self._common = common.clone()
        self._folders = folders
        self._patience = patience

    def receive(self, kind: str, key: str, there: Callable[[], bool]) -> Entry | None:
        name, end = f"{kind}/{key}", time.monotonic() + self._patience
        try:
            if self._common.add(f"{name}/claimed", 1) == 1:
                return None
            while not self._common.check([name]):
                if there() or time.monotonic() > end:
                    return None
                time.sleep(TICK)
            parts = int(self._common.get(name))
            if parts == NOT_TO_BE_HAD:
                return None
            data = b"".join(bytes(self._common.get(f"{name}/{part}")) for part in range(parts))
            if self._common.add(f"{name}/taken", 1) == self._folders - 1:
                self._common.set(name, str(NOT_TO_BE_HAD))
                for part in range(parts):
                    self._common.delete_key(f"{name}/{part}")
            return decode(data, kind, key)
        except (RuntimeError, ValueError):  # the store is gone, or was written by something else: it is compiled here
            return None

    def share(self, kind: str, key: str, entry: Entry | None) -> None:
        name, data = f"{kind}/{key}", b"" if entry is None else b"".join(encode(entry))
        parts = [data[start : start + PART] for start in range(0, len(data), PART)]
        try:
            for number, part in enumerate(parts):
                self._common.set(f"{name}/{number}", part)
            self._common.set(name, str(len(parts)))
        except RuntimeError:  # the store is gone, and with it those who would wait
            return


def announce(common: Any) -> None:
    """Count the folder of this rank's cache among those of the job, before its ranks have met."""
    if store().root is not None:
        where = hashlib.sha256(f"{socket.gethostname()} {store().root}".encode()).hexdigest()
        if common.add(f"folder/{where}", 1) == 1:
            common.add("folders", 1)


def install(common: Any) -> None:
    """Share programs if the ranks, which have met, have several folders."""
    folders = common.add("folders", 0)
    PEERS[:] = [Shared(common, folders)] if folders > 1 else []
