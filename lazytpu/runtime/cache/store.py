"""The store: entries by kind and key in one private folder, shared by processes."""

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

PATIENCE = 600.0  # seconds to wait for another process's compilation before doing it oneself
_KEY = re.compile(r"[0-9a-f]{16,128}")
_KIND = re.compile(r"[a-z]{1,32}")


@dataclass(slots=True)
class CacheStats:
    """What this process did, by kind of entry: `hits` found, `misses` looked for in vain, `stored`, `rejected` (damaged
    or foreign); `evicted` entries of any kind; `waited` seconds for other processes."""

    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    evicted: int = 0
    waited: float = 0.0


class Store:
    """Entries in the folder `root`, made at the first write; None for a store that is always empty and keeps nothing.

    No method raises because of what is, or is not, on disk: what cannot be read is a miss, what cannot be written is
    not written, each with one CacheWarning. `limit` is in bytes, None for `options.cache_limit`. Threads may share it.

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
        """The entry of that name, its digest checked, or None. A damaged one is removed, with a warning."""
        name = _name(kind, key)
        entry = self._read(kind, key, name)
        with self._lock:
            (self.stats.misses if entry is None else self.stats.hits)[kind] += 1
        return entry

    def has(self, kind: str, key: str) -> bool:
        """Whether there is an entry of that name, whatever is in it."""
        return self._access.readable() and self._path(_name(kind, key)).exists()

    def put(self, kind: str, key: str, payload: bytes, about: Mapping[str, Any]) -> bool:
        """Stores an entry, in place of one of the same name; whether it was. Other processes see all of it or nothing.

        `about` is JSON: what `lazytpu-show cache` and whoever reads the entry are to know. Its "name" is shown.

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
        """Whether `put` can store anything: False without a folder, or after a write that failed."""
        return self._access.writable()

    @contextmanager
    def locked(self, kind: str, key: str, about: Mapping[str, Any] | None = None) -> Iterator[bool]:
        """Holds the lock of one name against other processes and threads; gives True. Look again with `get` inside.
        Until it is given back, `making` lists the name with `about`, which is JSON.

        Gives False, without the lock, when there is an entry by now, when `patience` seconds were not enough or the
        holder has stopped (with a warning), or when there can be no lock: then do it oneself. A holder that dies loses
        the lock at once.
        """
        name = _name(kind, key)
        if not self.writable():
            yield False
            return
        assert self.root is not None
        path, start = self.root / folder.LOCKS / name, time.monotonic()
        there = self._path(name).exists
        try:
            held = locks.acquire(path, self.patience, enough=there, note=making.note(about or {}))
        except OSError as error:
            self._access.give_up(error)
            yield False
            return
        with self._lock:
            self.stats.waited += time.monotonic() - start
        if held is None and not there():
            taker = locks.holder(path)
            how = "has stopped" if locks.has_stopped(path) else f"works on it since over {self.patience:.0f} s"
            warn(f"{taker} is making {kind} {key[:16]}, and {how}; it is made here as well")
        try:
            yield held is not None
        finally:
            if held is not None:
                try:
                    locks.release(path, held)
                except OSError as error:
                    self._access.give_up(error)

    def reject(self, kind: str, key: str, reason: str) -> None:
        """Removes an entry that cannot be used, with a warning that says why."""
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
        """What `write_beside` wrote; None when there is nothing that can be read."""
        if not self._access.readable():
            return None
        assert self.root is not None
        try:
            return files.read(self.root / name)
        except (OSError, BadEntry):
            return None

    def write_beside(self, name: str, data: bytes) -> None:
        """Write a small file of the folder that is no entry, whole or not at all. One that cannot be written is not."""
        if not self.writable():
            return
        assert self.root is not None
        try:
            files.write(self.root / folder.TEMPORARY, self.root / name, [data])
        except OSError as error:
            self._access.give_up(error)

    # -- looking after it

    def entries(self, kind: str | None = None) -> list[Listed]:
        """All entries (of a kind), the one not used for longest first. Their digests are not looked at."""
        if not self._access.readable():
            return []
        assert self.root is not None
        listed = [files.listed(entries) for entries in ledger.walk(self.root)]
        return [entry for entry in listed if kind in (None, entry.kind)]

    def making(self) -> list[Making]:
        """What processes are making now, the one that began first first."""
        return making.listed(self.root) if self.root and self._access.readable() else []

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(file.size for file in ledger.walk(self.root)) if self.root and self._access.readable() else 0

    def remove(self, kind: str, key: str) -> bool:
        """Removes an entry; whether there was one. Raises OSError."""
        if not self._access.readable():
            return False
        try:
            self._path(_name(kind, key)).unlink()
        except FileNotFoundError:
            return False
        return True

    def clear(self) -> int:
        """Removes all entries, and says how many. Raises OSError."""
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
        """Removes the entries not used for longest until the rest has at most `limit` bytes; says how many went.

        Raises OSError."""
        if not self._access.readable():
            return 0
        assert self.root is not None
        return ledger.evict(self.root, limit)[0]

    def verify(self, remove: bool = True) -> list[Listed]:
        """Reads every entry whole, and gives those that are damaged, having removed them. Raises OSError."""
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
    """The store of `options.cache_dir`, one for each folder that was ever set."""
    return _store(options.cache_dir)
