"""Sharing of compiled programs among the ranks of a job, so that each is compiled once.

Machines without a common cache folder exchange the bytes through the torch store by which the ranks have met (as JAX
does with `jax_share_binary_between_hosts`).

1. The first rank that lacks a program claims it in the store under its rank number. No rank waits for one that does not
   need the program.
2. It asks the others, over the control plane, whether one has the program in its folder from an earlier job. Otherwise
   it compiles it.
3. The others wait for the bytes, as long as the claiming rank answers that it is compiling: it may have been
   interrupted, or stopped.
4. The bytes are deleted from the store once every folder has them.
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

TICK = 0.02  # seconds between polls of the store
PART = 4 << 20  # bytes per value: torch's server closes a connection that sends 8 MiB
NOT_TO_BE_HAD = 0  # in place of the number of parts: its rank could not compile it
ANSWER = 2.0  # seconds in which the others have to answer whether they have or compile a program
AGAIN = 2.0  # seconds between two such queries


class Shared(Peers):
    """The shared programs of a job, in its store `common`. `folders` counts the distinct cache folders of its ranks.

    - `seek(name, seconds, of)`: ask rank `of`, or with None one rank per other folder, whether it will share a program.
    - `is_short()`: whether a rank is lost, which may be the one that was to compile it.
    - `patience`: seconds to wait for a program that another rank compiles.
    """

    def __init__(
        self,
        common: Any,
        folders: int,
        rank: int,
        seek: Callable[[str, float, int | None], bool] = lambda name, seconds, of: False,
        is_short: Callable[[], bool] = lambda: False,
        patience: float = PATIENCE,
    ):
        # A separate connection: another thread may block in the job's own store until this program is here.
        self._common = CommonStore(common.clone())
        self._folders = folders
        self._rank = rank
        self._seek = seek
        self._is_short = is_short
        self._at_it: list[str] = []  # the programs that threads of this rank are compiling, or seeking
        self._offers: dict[str, threading.Thread] = {}
        self._patience = patience

    @contextmanager
    def sought(self, kind: str, key: str, there: Callable[[], bool]) -> Iterator[Entry | None]:
        """Implement `Peers.sought`."""
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
        """Return the rank that compiles a program: this one, if it is the first or the store does not answer."""
        try:
            return int(self._common.compare_set(f"{name}/maker", "", str(self._rank)))
        except (RuntimeError, ValueError):  # the store is gone, or contains something else
            return self._rank

    def _awaited(self, name: str, there: Callable[[], bool], maker: int | None) -> Entry | None:
        """Return the program that rank `maker` compiles, or, if `maker` is None, any rank's copy of it.

        Return None if the program is in this folder meanwhile (`there`), or if no rank shares it.
        """
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
            chunks = int(common.get(name))
            if chunks == NOT_TO_BE_HAD:
                return None
            data = b"".join(bytes(common.get(f"{name}/{index}")) for index in range(chunks))
            is_first = common.add(f"{name}/taken by {folder()}", 1) == 1
            if is_first and common.add(f"{name}/taken", 1) == self._folders - 1:
                common.set(name, str(NOT_TO_BE_HAD))
                for index in range(chunks):
                    common.delete_key(f"{name}/{index}")
            return decode(data, *name.split("/"))
        except (RuntimeError, ValueError):  # the store is gone, or contains something else: compile here
            return None

    def _share(self, kind: str, key: str) -> None:
        """Put the program from this rank's folder into the store; if it has none, mark it as not available."""
        entry = store().get(kind, key) if store().has(kind, key) else None
        name, data = f"{kind}/{key}", b"" if entry is None else b"".join(encode(entry))
        chunks = [data[start : start + PART] for start in range(0, len(data), PART)]
        try:
            for number, chunk in enumerate(chunks):
                self._common.set(f"{name}/{number}", chunk)
            self._common.set(name, str(len(chunks)))
        except RuntimeError:  # the store is gone; the waiting ranks find out when they ask again
            return

    def offer(self, name: str) -> bool:
        """Return whether this rank will share a program that another one seeks: it is compiling it, or has it in its
        folder."""
        kind, _, key = name.partition("/")
        offered = self._offers.get(name)
        if name in self._at_it or (offered is not None and offered.is_alive()):
            return True
        if not store().has(kind, key):
            return False
        offering = threading.Thread(target=self._share, args=(kind, key), name="lazytpu offer", daemon=True)
        self._offers = {offer: thread for offer, thread in self._offers.items() if thread.is_alive()} | {name: offering}
        offering.start()
        return True

    def close(self, end: float) -> bool:
        """Wait until `end` (time.monotonic()) for uploads in progress. Returns whether all are done."""
        for upload in self._offers.values():
            upload.join(max(0.0, end - time.monotonic()))
        return not any(upload.is_alive() for upload in self._offers.values())


def folder() -> str:
    """Return an identifier of this rank's cache folder, unique in the job; empty if it has none."""
    root = store().root
    return "" if root is None else hashlib.sha256(f"{socket.gethostname()} {root}".encode()).hexdigest()


def announce(common: Any) -> None:
    """Count this rank's cache folder among the job's; called before the ranks have met."""
    where = folder()
    if where and common.add(f"folder/{where}", 1) == 1:
        common.add("folders", 1)


def install(
    common: Any, rank: int, seek: Callable[[str, float, int | None], bool], is_short: Callable[[], bool]
) -> Shared | None:
    """Share programs if the ranks have several cache folders; called after the ranks have met. Arguments as for
    `Shared`."""
    folders = common.add("folders", 0)
    shared = Shared(common, folders, rank, seek, is_short) if folders > 1 else None
    PEERS[:] = [] if shared is None else [shared]
    return shared
