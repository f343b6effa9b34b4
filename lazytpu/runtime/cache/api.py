"""`lazytpu.cache`: the public interface of the cache on disk."""

from __future__ import annotations

from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

from lazytpu.options import options
from lazytpu.runtime.cache.files import Listed
from lazytpu.runtime.cache.making import Making
from lazytpu.runtime.cache.store import Store, store


class Cache:
    """The cache in the folder that `options.cache_dir` names now."""

    @property
    def directory(self) -> Path | None:
        """The absolute path of the folder, which need not exist yet; None when the cache on disk is off."""
        return self._store.root

    @property
    def size(self) -> int:
        """The size of all entries in bytes."""
        return self._store.size()

    @property
    def stats(self) -> dict[str, Any]:
        """The counters of this process: `hits`, `misses`, `stored` and `rejected` by kind of entry ("program" is an
        executable; a kind without any counts 0), `evicted` entries, and `waited`, the seconds spent waiting for
        compilations of other processes."""
        counted = self._store.stats
        return {counter.name: copy(getattr(counted, counter.name)) for counter in fields(counted)}

    def entries(self, kind: str | None = None) -> list[Listed]:
        """Return the entries (of `kind`), least recently used first."""
        return self._store.entries(kind)

    def making(self) -> list[Making]:
        """Return the entries in progress, such as programs that processes compile now, oldest first."""
        return self._store.making()

    def clear(self) -> int:
        """Remove all entries, and return their number. Loaded programs stay in memory. Raises OSError."""
        return self._store.clear()

    def evict(self, limit: int | None = None) -> int:
        """Remove the least recently used entries until at most `limit` bytes (by default `options.cache_limit`) remain.
        Return the number of removed entries. Raises OSError."""
        target = options.cache_limit if limit is None else limit
        return self._store.evict(target) if target or limit == 0 else 0

    def verify(self) -> list[Listed]:
        """Read every entry and check its digest. Remove and return the damaged ones, with the reason in `damage`.
        Raises OSError."""
        return self._store.verify()

    @property
    def _store(self) -> Store:
        return store()

    def __repr__(self) -> str:
        return f"<lazytpu.cache in {self.directory}>" if self.directory else "<lazytpu.cache: off>"


cache = Cache()
