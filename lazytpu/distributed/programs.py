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

from lazytpu.runtime.cache.entry import BadEntry, Entry, decode, encode
from lazytpu.runtime.cache.peers import PEERS, Peers
from lazytpu.runtime.cache.store import PATIENCE, store

TICK = 0.02  # seconds between looks at the store
NOT_TO_BE_HAD = b""


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
            data = bytes(self._common.get(name))
            if data == NOT_TO_BE_HAD:
                return None
            if self._common.add(f"{name}/taken", 1) == self._folders - 1:
                self._common.set(name, NOT_TO_BE_HAD)
            return decode(data, kind, key)
        except (RuntimeError, BadEntry):  # the store is gone, or was written by something else: it is compiled here
            return None

    def share(self, kind: str, key: str, entry: Entry | None) -> None:
        try:
            self._common.set(f"{kind}/{key}", NOT_TO_BE_HAD if entry is None else b"".join(encode(entry)))
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
