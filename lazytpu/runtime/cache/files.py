"""The files of entries: read, written atomically, and listed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from lazytpu.runtime.cache.entry import HEADER_AT, HITS, HITS_AT, BadEntry, describe, hits_of, lengths
from lazytpu.runtime.cache.ledger import Found
from lazytpu.runtime.cache.locks import try_lock

_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Listed:
    """The description of an entry: `size` in bytes with its header, `used` and `created` in seconds since 1970.

    `damage` is the reason it cannot be used, or None. Only `Store.verify` checks the digest.
    """

    kind: str
    key: str
    size: int
    used: float
    created: float = 0.0
    hits: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)
    damage: str | None = None


def read(path: Path) -> bytes:
    """Return all bytes of an entry's file. Raises OSError, and BadEntry for all but a regular file of this user."""
    try:
        # O_NONBLOCK: opening a pipe would block
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadEntry("it is a symbolic link") from error
        raise
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid():
            raise BadEntry("it belongs to another user")
        if not stat.S_ISREG(status.st_mode):
            raise BadEntry("it is no file")
        with os.fdopen(opened, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(opened)


def note_use(path: Path, hits: int) -> None:
    """Write the counter of an entry that was read. The write also sets its time of last use, which decides eviction."""
    with suppress(OSError):  # the read succeeded all the same: the folder may be read-only, or the entry evicted since
        opened = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(opened, HITS.pack(hits), HITS_AT)
        finally:
            os.close(opened)


def write(temporary: Path, path: Path, parts: list[bytes]) -> None:
    """Write a file atomically, by a temporary file in the folder `temporary`. Raises OSError."""
    while not _written(temporary / f"{path.name}.{os.getpid()}.{next(_NUMBERS)}", path, parts):
        pass


def _written(beside: Path, path: Path, parts: list[bytes]) -> bool:
    opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # The lock keeps `ledger.sweep` from removing the file while its writer lives. If a sweep came first, start
        # over.
        if not try_lock(opened) or os.fstat(opened).st_nlink == 0:
            return False
        with os.fdopen(opened, "wb", closefd=False) as file:
            file.writelines(parts)
        os.fsync(opened)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(opened)
    return True


def listed(file_info: Found) -> Listed:
    """Return the description of an entry, from its header."""
    key, _, kind = file_info.path.name.partition(".")
    entry = Listed(kind, key, file_info.size, file_info.used)
    try:
        with open(file_info.path, "rb") as file:
            fixed = file.read(HEADER_AT)
            length, _ = lengths(fixed)
            about, created = describe(file.read(length), kind, key)
    except (BadEntry, OSError) as error:
        return replace(entry, damage=str(error))
    return replace(entry, about=about, created=created, hits=hits_of(fixed))
