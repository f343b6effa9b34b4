"""The store: entries by kind and key in one private folder that processes share."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from lazytpu.options import options
from lazytpu.runtime.cache import files, folder, ledger, locks, making
from lazytpu.runtime.cache.access import Access, CacheWarning, said, warn
from lazytpu.runtime.cache.entry import BadEntry, Entry, decode, encode
from lazytpu.runtime.cache.files import Listed
from lazytpu.runtime.cache.making import Making

__all__ = ["CacheStats", "CacheWarning", "Listed", "Store", "store"]

PATIENCE = 600.0  # seconds to wait for another process's compilation before compiling here
_KEY = re.compile(r"[0-9a-f]{16,128}")
_KIND = re.compile(r"[a-z]{1,32}")


@dataclass(slots=True)
class CacheStats:
    """Counters of this process by kind of entry: `hits`, `misses`, `stored`, `rejected` (damaged or foreign). `evicted`
    counts entries of any kind, and `waited` the seconds of waiting for other processes."""

    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    evicted: int = 0
    waited: float = 0.0


class Store:
    """Entries in the folder `root`, which is created at the first write. With None, the store is always empty.

    No method raises because of the state of the disk: an unreadable entry is a miss, and an entry that cannot be
    written is dropped, each with one CacheWarning. `limit` is in bytes, None for `options.cache_limit`. Threads may
    share a store.

        entry = store.get("program", key)
        if entry is None:
            with store.locked("program", key):
                entry = store.get("program", key)  # from the process that had the lock
                if entry is None:
                    ...
                    store.put("program", key, payload, {"name": "step"})
    """

    def __init__(self, root: Path | None, limit: int | None = None, patience: float = PATIENCE) -> None:
        self.root = root
        self.limit = limit
        self.patience = patience
        self.stats = CacheStats()
        self._lock = threading.Lock()
        self._access = Access(root)
        self._rejected: set[str] = set()  # names of entries that could not be removed

    # -- reading and writing

    def get(self, kind: str, key: str) -> Entry | None:
        """Return the entry after checking its digest, or None. A damaged entry is removed, with a warning."""
        name = _name(kind, key)
        entry = self._read(kind, key, name)
        with self._lock:
            (self.stats.misses if entry is None else self.stats.hits)[kind] += 1
        return entry

    def has(self, kind: str, key: str) -> bool:
        """Whether there is an entry of that name. Its contents are not checked."""
        return self._access.readable() and self._path(_name(kind, key)).exists()

    def put(self, kind: str, key: str, payload: bytes, about: Mapping[str, Any]) -> bool:
        """Store an entry, replacing one of the same name. Return whether it was stored. The write is atomic for other
        processes.

        `about` is a JSON description for readers of the entry. `lazytpu-show cache` shows its "name".

        Raises:
            TypeError: `about` is not JSON.
        """
        name = _name(kind, key)
        parts = encode(Entry(kind, key, payload, about, time.time(), 0))
        size, limit = sum(map(len, parts)), self._limit()
        if (limit and size > limit) or not self.writable():
            return False
        assert self.root is not None
        try:
            path = self._path(name)
            before = path.stat().st_size if path.exists() else 0
            files.write(self.root / folder.TEMPORARY, path, parts)
            evicted = ledger.account(self.root, size - before, limit)
        except OSError as error:
            self._access.give_up(error)
            return False
        with self._lock:
            self.stats.stored[kind] += 1
            self.stats.evicted += evicted
            self._rejected.discard(name)
        return True

    def writable(self) -> bool:
        """Whether `put` can store anything: False without a folder, or after a failed write."""
        return self._access.writable()

    @contextmanager
    def locked(self, kind: str, key: str, about: Mapping[str, Any] | None = None) -> Iterator[bool]:
        """Hold the lock of one name against other processes and threads, and give True. Inside, look again with `get`.
        While the lock is held, `making` lists the name with `about`, which is JSON.

        Give False without the lock, so that the caller compiles itself, if

        - the entry exists by now,
        - `patience` seconds have passed or the holder has stopped (with a warning), or
        - the file system has no locks.

        A holder that dies loses the lock at once.
        """
        name = _name(kind, key)
        if not self.writable():
            yield False
            return
        assert self.root is not None
        path, start = self.root / folder.LOCKS / name, time.monotonic()
        there = self._path(name).exists
        try:
            lock = locks.acquire(path, self.patience, enough=there, note=making.note(about or {}))
        except OSError as error:
            self._access.give_up(error)
            yield False
            return
        with self._lock:
            self.stats.waited += time.monotonic() - start
        if lock is None and not there():
            taker = locks.holder(path)
            how = "has stopped" if locks.has_stopped(path) else f"works on it since over {self.patience:.0f} s"
            warn(f"{taker} is making {kind} {key[:16]}, and {how}; it is made here as well")
        try:
            yield lock is not None
        finally:
            if lock is not None:
                try:
                    locks.release(path, lock)
                except OSError as error:
                    self._access.give_up(error)

    def reject(self, kind: str, key: str, reason: str) -> None:
        """Remove an unusable entry, and warn with the reason."""
        name = _name(kind, key)
        with self._lock:
            self._rejected.add(name)
            self.stats.rejected[kind] += 1
        try:
            self._path(name).unlink(missing_ok=True)
            what = "it was removed, and is made anew"
        except OSError as error:
            what = f"it is not used; removing it failed ({error.strerror})"
        warn(f"the cached {kind} {key[:16]} in {self.root} is damaged or foreign: {reason}; {what}")

    # -- beside the entries

    def read_beside(self, name: str) -> bytes | None:
        """Return the bytes that `write_beside` wrote; None when they are missing or unreadable."""
        if not self._access.readable():
            return None
        assert self.root is not None
        try:
            return files.read(self.root / name)
        except (OSError, BadEntry):
            return None

    def write_beside(self, name: str, data: bytes) -> None:
        """Write a small auxiliary file into the folder, atomically. A failed write is dropped, with a warning."""
        if not self.writable():
            return
        assert self.root is not None
        try:
            files.write(self.root / folder.TEMPORARY, self.root / name, [data])
        except OSError as error:
            self._access.give_up(error)

    # -- looking after it

    def entries(self, kind: str | None = None) -> list[Listed]:
        """Return all entries (of a kind), least recently used first. Their digests are not checked."""
        if not self._access.readable():
            return []
        assert self.root is not None
        listed = [files.listed(entries) for entries in ledger.walk(self.root)]
        return [entry for entry in listed if kind in (None, entry.kind)]

    def making(self) -> list[Making]:
        """Return the entries in progress in all processes, oldest first."""
        return making.listed(self.root) if self.root and self._access.readable() else []

    def size(self) -> int:
        """Return the size of all entries in bytes."""
        return sum(file.size for file in ledger.walk(self.root)) if self.root and self._access.readable() else 0

    def remove(self, kind: str, key: str) -> bool:
        """Remove an entry. Return whether it existed. Raises OSError."""
        if not self._access.readable():
            return False
        try:
            self._path(_name(kind, key)).unlink()
        except FileNotFoundError:
            return False
        return True

    def clear(self) -> int:
        """Remove all entries, and return their number. Raises OSError."""
        if not self._access.readable():
            return 0
        assert self.root is not None
        entries = ledger.walk(self.root)
        for entry in entries:
            entry.path.unlink(missing_ok=True)
        ledger.sweep(self.root)
        for name in (folder.LEDGER, folder.SPEEDS):
            (self.root / name).unlink(missing_ok=True)
        return len(entries)

    def evict(self, limit: int) -> int:
        """Remove the least recently used entries until at most `limit` bytes remain. Return the number of removed
        entries.

        Raises OSError.
        """
        if not self._access.readable():
            return 0
        assert self.root is not None
        return ledger.evict(self.root, limit)[0]

    def verify(self, remove: bool = True) -> list[Listed]:
        """Read every entry, and return the damaged ones, after removing them if `remove`. Raises OSError."""
        if not self._access.readable():
            return []
        assert self.root is not None
        damaged: list[Listed] = []
        for file in ledger.walk(self.root):
            listed = files.listed(file)
            try:
                decode(files.read(file.path), listed.kind, listed.key)
            except FileNotFoundError:  # evicted since
                continue
            except BadEntry as error:
                damaged.append(replace(listed, damage=str(error)))
                if remove:
                    file.path.unlink(missing_ok=True)
        return damaged

    # -- the folder

    def _path(self, name: str) -> Path:
        assert self.root is not None
        return self.root / folder.ENTRIES / name

    def _limit(self) -> int:
        return options.cache_limit if self.limit is None else self.limit

    def _read(self, kind: str, key: str, name: str) -> Entry | None:
        if not self._access.readable() or name in self._rejected:
            return None
        path = self._path(name)
        try:
            entry = decode(files.read(path), kind, key)
        except FileNotFoundError:
            return None
        except BadEntry as error:
            self.reject(kind, key, str(error))
            return None
        except OSError as error:
            warn(f"cannot read the cached {kind} {key[:16]}: {said(error)}; it is made anew")
            return None
        files.note_use(path, entry.hits + 1)
        return entry


def _name(kind: str, key: str) -> str:
    if not _KIND.fullmatch(kind) or not _KEY.fullmatch(key):
        raise ValueError(f"an entry is named by a word and a digest in hexadecimal, not by {kind!r} and {key!r}")
    return f"{key}.{kind}"


@cache
def _store(root: Path | None) -> Store:
    try:
        return Store(None if root is None else folder.located(root))
    except OSError as error:
        warn(f"programs are cached in memory only: {said(error)}")
        return Store(None)


def store() -> Store:
    """Return the store of `options.cache_dir`, one for each folder that was ever set."""
    return _store(options.cache_dir)
