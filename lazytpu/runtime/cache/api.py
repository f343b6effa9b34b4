"""`lazytpu.cache`: the cache on disk as a user sees it."""

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
    """The folder that `options.cache_dir` names now."""

    @property
    def directory(self) -> Path | None:
        """Its absolute path, None when nothing is kept on disk. It need not exist yet."""
        return self._store.root

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return self._store.size()

    @property
    def stats(self) -> dict[str, Any]:
        """What this process did there: `hits`, `misses`, `stored` and `rejected` by kind of entry ("program" is an
        executable; 0 for a kind there was nothing of), `evicted`, and `waited`, the seconds spent waiting for other
        processes' compilations."""
        counted = self._store.stats
        return {counter.name: copy(getattr(counted, counter.name)) for counter in fields(counted)}

    def entries(self, kind: str | None = None) -> list[Listed]:
        """What is in it (of one kind), the one not used for longest first."""
        return self._store.entries(kind)

    def making(self) -> list[Making]:
        """What processes are making for it now, such as programs that they compile, the one that began first first."""
        return self._store.making()

    def clear(self) -> int:
        """Remove everything, and say how many entries that were. Programs in use stay in memory. Raises OSError."""
        return self._store.clear()

    def evict(self, limit: int | None = None) -> int:
        """Remove the entries not used for longest until at most `limit` bytes (by default `options.cache_limit`) are
        left, and say how many went. Raises OSError."""
        target = options.cache_limit if limit is None else limit
        return self._store.evict(target) if target or limit == 0 else 0

    def verify(self) -> list[Listed]:
        """Read every entry whole, remove the damaged ones, and give these: `damage` says what is wrong. Raises
        OSError."""
        return self._store.verify()

    @property
    def _store(self) -> Store:
        return store()

    def __repr__(self) -> str:
        return f"<lazytpu.cache in {self.directory}>" if self.directory else "<lazytpu.cache: off>"


cache = Cache()
