"""Each program is compiled once in a job, also on machines that share no cache folder: its bytes go through the store
by which the ranks have met. (JAX does the same with `jax_share_binary_between_hosts`.)

The first rank that lacks a program claims it there by a counter, so nobody waits for a rank that does not need it. It
asks the others, over the control plane, whether one has it in its folder from an earlier job, and makes it if not.
Bytes that every folder has got are taken out of the store.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from lazytpu.runtime.cache.entry import Entry, decode, encode
from lazytpu.runtime.cache.peers import PEERS, Peers
from lazytpu.runtime.cache.store import PATIENCE, store

TICK = 0.02  # seconds between looks at the store
PART = 4 << 20  # bytes of one value: torch's server closes the connection of whoever sends 8 MiB
NOT_TO_BE_HAD = 0
ANSWER = 2.0  # seconds in which the others have to say whether they have a program


class Shared(Peers):
    """Programs of a job whose ranks have so many cache `folders`, in its store `common`. `seek` asks the others for
    one, for at most so many seconds: whether one of them shares it now. `is_short` says that a rank is gone: it may be
    the one that was to make a program."""

    def __init__(
        self,
        common: Any,
        folders: int,
        seek: Callable[[str, float], bool] = lambda name, seconds: False,
        is_short: Callable[[], bool] = lambda: False,
        patience: float = PATIENCE,
    ):
        # A connection of its own: another thread may wait for something in the job's, which waits for this program.
        self._common = common.clone()
        self._folders = folders
        self._seek = seek
        self._is_short = is_short
        self._offers: list[threading.Thread] = []
        self._patience = patience

    def receive(self, kind: str, key: str, there: Callable[[], bool]) -> Entry | None:
        name, end = f"{kind}/{key}", time.monotonic() + self._patience
        try:
            if self._common.add(f"{name}/claimed", 1) == 1 and not self._seek(name, ANSWER):
                return None
            while not self._common.check([name]):
                if there() or self._is_short() or time.monotonic() > end:
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

    def offer(self, name: str) -> bool:
        """Whether the own folder has what another rank seeks; then that is shared, on a thread."""
        kind, _, key = name.partition("/")
        if not store().has(kind, key):
            return False
        offering = threading.Thread(
            target=lambda: self.share(kind, key, store().get(kind, key)), name="lazytpu offer", daemon=True
        )
        self._offers = [each for each in self._offers if each.is_alive()] + [offering]
        offering.start()
        return True

    def close(self, end: float) -> bool:
        """Wait until `end` (time.monotonic()) for what is being shared. Returns whether that is done."""
        for each in self._offers:
            each.join(max(0.0, end - time.monotonic()))
        return not any(each.is_alive() for each in self._offers)


def folder() -> str:
    """What tells the folder of this rank's cache from those of others; empty if it has none."""
    root = store().root
    return "" if root is None else hashlib.sha256(f"{socket.gethostname()} {root}".encode()).hexdigest()


def announce(common: Any) -> None:
    """Count the folder of this rank's cache among those of the job, before its ranks have met."""
    where = folder()
    if where and common.add(f"folder/{where}", 1) == 1:
        common.add("folders", 1)


def install(common: Any, seek: Callable[[str, float], bool], is_short: Callable[[], bool]) -> Shared | None:
    """Share programs if the ranks, which have met, have several folders; `seek` and `is_short` as for `Shared`."""
    folders = common.add("folders", 0)
    shared = Shared(common, folders, seek, is_short) if folders > 1 else None
    PEERS[:] = [] if shared is None else [shared]
    return shared
