"""The files of entries: read, written whole or not at all, and listed."""

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
    """An entry as it is listed: `size` in bytes with its header, `used` and `created` in seconds since 1970.

    `damage` says what is wrong with it, None for nothing that was seen (only `Store.verify` looks at the digest).
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
    """All bytes of an entry's file. Raises BadEntry for one that is not a file of this user, and OSError."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would wait
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
    """Writes the counter of an entry that was read. That also sets its time of last use, which eviction goes by."""
    with suppress(OSError):  # it was read all the same: from a folder that cannot be written, or evicted since
        opened = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(opened, HITS.pack(hits), HITS_AT)
        finally:
            os.close(opened)


def write(temporary: Path, path: Path, parts: list[bytes]) -> None:
    """Writes a file by way of the folder `temporary`: being killed leaves `path` as it was. Raises OSError."""
    while not _written(temporary / f"{path.name}.{os.getpid()}.{next(_NUMBERS)}", path, parts):
        pass


def _written(beside: Path, path: Path, parts: list[bytes]) -> bool:
    opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # The lock tells `ledger.sweep` that the writer lives; a sweep that came in between has removed the file.
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


def listed(found: Found) -> Listed:
    """An entry as its header describes it."""
    key, _, kind = found.path.name.partition(".")
    entry = Listed(kind, key, found.size, found.used)
    try:
        with open(found.path, "rb") as file:
            fixed = file.read(HEADER_AT)
            length, _ = lengths(fixed)
            about, created = describe(file.read(length), kind, key)
    except (BadEntry, OSError) as error:
        return replace(entry, damage=str(error))
    return replace(entry, about=about, created=created, hits=hits_of(fixed))
