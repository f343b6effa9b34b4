"""How many bytes the entries have, and which of them go when it is too much.

The sum is one number in a file that writers add to, so a write costs no walk over the folder. It is counted anew when
it exceeds the limit, and every `RECOUNT` writes, since a killed process may have left it wrong.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from lazytpu.runtime.cache.folder import ENTRIES, LEDGER, LOCKS, TEMPORARY
from lazytpu.runtime.cache.locks import remove_if_free, try_lock

RECOUNT = 1000
FILL = 0.9  # eviction stops at this part of the limit, so that not every write after it evicts
_LINE = "{:020d} {:020d}\n"  # bytes, writes since the last count


@dataclass(frozen=True, slots=True)
class Found:
    """One file among the entries: when it was last used (seconds since 1970), and its bytes."""

    used: float
    size: int
    path: Path


def walk(root: Path) -> list[Found]:
    """All entries there are, the one not used for longest first."""
    entries: list[Found] = []
    try:
        with os.scandir(root / ENTRIES) as inside:
            for file in inside:
                try:
                    status = file.stat(follow_symlinks=False)
                except FileNotFoundError:  # another process has just removed it
                    continue
                if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):  # all else is not the cache's
                    entries.append(Found(status.st_mtime, status.st_size, Path(file.path)))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(entries, key=lambda file: (file.used, file.path.name))


def account(root: Path, added: int, limit: int) -> int:
    """Notes that the entries grew by `added` bytes, and evicts when they exceed `limit` (0 for none): returns how many
    entries went. While another process does the same, it is left to that one. Raises OSError."""
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
    """Removes the entries not used for longest until the rest has at most `target` bytes, and what killed writers left.
    Returns (how many entries went, bytes of those that stay). Raises OSError."""
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
    """Removes temporary files and locks of processes that were killed: the living hold a lock on theirs. Raises
    OSError."""
    for name in (TEMPORARY, LOCKS):
        if (root / name).is_dir():
            for file in list((root / name).iterdir()):
                remove_if_free(file)


def _read(opened: int) -> tuple[int, int]:
    """(bytes, writes); a recount is due where the file says nothing one can read."""
    try:
        total, writes = os.pread(opened, 64, 0).split()
        return int(total), int(writes)
    except ValueError:
        return 0, RECOUNT
