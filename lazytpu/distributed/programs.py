"""Each program is compiled once in a job, also on machines that share no cache folder: its bytes go through the store
by which the ranks have met. (JAX does the same with `jax_share_binary_between_hosts`.)

The first rank that lacks a program claims it there with its number, so nobody waits for a rank that does not need it.
It asks the others, over the control plane, whether one has it in its folder from an earlier job, and makes it if not.
The others wait for the bytes as long as that rank answers that it is at it: it may have been interrupted, or stopped.
Bytes that every folder has got are taken out of the store.
"""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lazytpu.distributed.common_store import CommonStore
from lazytpu.runtime.cache.entry import Entry, decode, encode
from lazytpu.runtime.cache.peers import PEERS, Peers
from lazytpu.runtime.cache.store import PATIENCE, store

TICK = 0.02  # seconds between looks at the store
PART = 4 << 20  # bytes of one value: torch's server closes the connection of whoever sends 8 MiB
NOT_TO_BE_HAD = 0
ANSWER = 2.0  # seconds in which the others have to say whether they have a program, or are at it
AGAIN = 2.0  # seconds after which they are asked once more


class Shared(Peers):
    """Programs of a job whose ranks, of which this is number `rank`, have so many cache `folders`, in its store
    `common`. `seek` asks a rank, or with None one with each other folder, for a program, for at most so many seconds:
    whether it is going to share it. `is_short` says that a rank is gone: it may be the one that was to make it."""

    def __init__(
        self,
        common: Any,
        folders: int,
        rank: int,
        seek: Callable[[str, float, int | None], bool] = lambda name, seconds, of: False,
        is_short: Callable[[], bool] = lambda: False,
        patience: float = PATIENCE,
    ):
        # A connection of its own: another thread may wait for something in the job's, which waits for this program.
        self._common = CommonStore(common.clone())
        self._folders = folders
        self._rank = rank
        self._seek = seek
        self._is_short = is_short
        self._at_it: list[str] = []  # what threads of this rank make, or ask the others for
        self._offers: dict[str, threading.Thread] = {}
        self._patience = patience

    @contextmanager
    def sought(self, kind: str, key: str, there: Callable[[], bool]) -> Iterator[Entry | None]:
        """As `Peers` says."""
        name = f"{kind}/{key}"
        maker = self._claimed(name)
        entry = None
        if maker != self._rank:
            entry = self._awaited(name, there, maker)
            if entry is not None or there():
                yield entry
                return
        self._at_it.append(name)
        try:
            if maker == self._rank:
                entry = self._awaited(name, there, None)
            yield entry
        finally:
            self._at_it.remove(name)
            if entry is None:
                self._share(kind, key)

    def _claimed(self, name: str) -> int:
        """The rank that makes a program: this one, if it is the first, or if nobody can be asked."""
        try:
            return int(self._common.compare_set(f"{name}/maker", "", str(self._rank)))
        except (RuntimeError, ValueError):  # the store is gone, or was written by something else
            return self._rank

    def _awaited(self, name: str, there: Callable[[], bool], maker: int | None) -> Entry | None:
        """What the rank `maker` makes, or, with None, what any has. None if it is `there`, or not to be had."""
        common, now = self._common, time.monotonic()
        end, ask = now + self._patience, now if maker is None else now + AGAIN
        try:
            while not common.check([name]):
                if there() or self._is_short() or time.monotonic() > end:
                    return None
                if time.monotonic() >= ask:
                    if not self._seek(name, ANSWER, maker):
                        return None
                    ask = time.monotonic() + AGAIN
                time.sleep(TICK)
            parts = int(common.get(name))
            if parts == NOT_TO_BE_HAD:
                return None
            data = b"".join(bytes(common.get(f"{name}/{part}")) for part in range(parts))
            is_first = common.add(f"{name}/taken by {folder()}", 1) == 1
            if is_first and common.add(f"{name}/taken", 1) == self._folders - 1:
                common.set(name, str(NOT_TO_BE_HAD))
                for part in range(parts):
                    common.delete_key(f"{name}/{part}")
            return decode(data, *name.split("/"))
        except (RuntimeError, ValueError):  # the store is gone, or was written by something else: it is compiled here
            return None

    def _share(self, kind: str, key: str) -> None:
        """Give the others what is in the own folder, or say that it is not to be had."""
        entry = store().get(kind, key) if store().has(kind, key) else None
        name, data = f"{kind}/{key}", b"" if entry is None else b"".join(encode(entry))
        parts = [data[start : start + PART] for start in range(0, len(data), PART)]
        try:
            for number, part in enumerate(parts):
                self._common.set(f"{name}/{number}", part)
            self._common.set(name, str(len(parts)))
        except RuntimeError:  # the store is gone: those who wait ask for it in vain
            return

    def offer(self, name: str) -> bool:
        """Whether this rank shares what another one seeks, sooner or later: it is at it, or its folder has it."""
        kind, _, key = name.partition("/")
        offered = self._offers.get(name)
        if name in self._at_it or (offered is not None and offered.is_alive()):
            return True
        if not store().has(kind, key):
            return False
        offering = threading.Thread(target=self._share, args=(kind, key), name="lazytpu offer", daemon=True)
        self._offers = {each: thread for each, thread in self._offers.items() if thread.is_alive()} | {name: offering}
        offering.start()
        return True

    def close(self, end: float) -> bool:
        """Wait until `end` (time.monotonic()) for what is being shared. Returns whether that is done."""
        for each in self._offers.values():
            each.join(max(0.0, end - time.monotonic()))
        return not any(each.is_alive() for each in self._offers.values())


def folder() -> str:
    """What tells the folder of this rank's cache from those of others; empty if it has none."""
    root = store().root
    return "" if root is None else hashlib.sha256(f"{socket.gethostname()} {root}".encode()).hexdigest()


def announce(common: Any) -> None:
    """Count the folder of this rank's cache among those of the job, before its ranks have met."""
    where = folder()
    if where and common.add(f"folder/{where}", 1) == 1:
        common.add("folders", 1)


def install(
    common: Any, rank: int, seek: Callable[[str, float, int | None], bool], is_short: Callable[[], bool]
) -> Shared | None:
    """Share programs if the ranks, which have met, have several folders; `rank`, `seek` and `is_short` as for
    `Shared`."""
    folders = common.add("folders", 0)
    shared = Shared(common, folders, rank, seek, is_short) if folders > 1 else None
    PEERS[:] = [] if shared is None else [shared]
    return shared
