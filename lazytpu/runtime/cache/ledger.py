"""The total size of the entries, and their eviction.

The total is one number in a file that each writer updates, so a write need not scan the folder. It is recounted when it
exceeds the limit, and every `RECOUNT` writes, since a killed process may have left it wrong.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from lazytpu.runtime.cache.folder import ENTRIES, LEDGER, LOCKS, TEMPORARY
from lazytpu.runtime.cache.locks import remove_if_free, try_lock

RECOUNT = 1000  # writes: a recount reads the sizes of all files
FILL = 0.9  # eviction stops at this fraction of the limit, so that not every later write evicts
_LINE = "{:020d} {:020d}\n"  # total bytes, writes since the last recount


@dataclass(frozen=True, slots=True)
class Found:
    """A file among the entries: the time of its last use (seconds since 1970), its size in bytes, its path."""

    used: float
    size: int
    path: Path


def walk(root: Path) -> list[Found]:
    """Return all entries, least recently used first."""
    entries: list[Found] = []
    try:
        with os.scandir(root / ENTRIES) as inside:
            for file in inside:
                try:
                    status = file.stat(follow_symlinks=False)
                except FileNotFoundError:  # another process has just removed it
                    continue
                if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):  # other files are not the cache's
                    entries.append(Found(status.st_mtime, status.st_size, Path(file.path)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(entries, key=lambda file: (file.used, file.path.name))


def account(root: Path, added: int, limit: int) -> int:
    """Add `added` bytes to the total, and evict entries when it exceeds `limit` (0 for unlimited). Return the number of
    evicted entries. Do nothing while another process holds the ledger. Raises OSError."""
    opened = os.open(root / LEDGER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not try_lock(opened):
            return 0
        total, writes = _read(opened)
        total, writes = max(0, total + added), writes + 1
        evicted = 0
        if writes >= RECOUNT:
            total, writes = sum(entry.size for entry in walk(root)), 0
        if limit and total > limit:
            evicted, total = evict(root, int(FILL * limit))
            writes = 0
        os.pwrite(opened, _LINE.format(total, writes).encode(), 0)
        return evicted
    finally:
        os.close(opened)


def evict(root: Path, target: int) -> tuple[int, int]:
    """Remove temporary files, then the least recently used entries until at most `target` bytes remain. Return (number
    of removed entries, bytes of the remaining ones). Raises OSError."""
    sweep(root)
    entries = walk(root)
    total, evicted = sum(entry.size for entry in entries), 0
    for entry in entries:
        if total <= target:
            break
        entry.path.unlink(missing_ok=True)
        total -= entry.size
        evicted += 1
    return evicted, total


def sweep(root: Path) -> None:
    """Remove temporary files and locks of killed processes; a living process holds locks on its own. Raises OSError."""
    for name in (TEMPORARY, LOCKS):
        if (root / name).is_dir():
            for file in list((root / name).iterdir()):
                remove_if_free(file)


def _read(opened: int) -> tuple[int, int]:
    """Return (bytes, writes). An unreadable file makes a recount due."""
    try:
        total, writes = os.pread(opened, 64, 0).split()
        return int(total), int(writes)
    except ValueError:
        return 0, RECOUNT
