"""An unwritable folder: one warning, existing entries are still read, and no file is left."""

from __future__ import annotations

import errno
import os
import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lazytpu.runtime.cache.store import CacheWarning, Store

KEY, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with one entry, new in this process."""
    Store(tmp_path / "cache").put("program", KEY, b"kept", {})
    return Store(tmp_path / "cache")


def failing(code: int) -> Callable[..., Any]:
    def fail(path: Any, *args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code), str(path) if isinstance(path, str | Path) else None)

    return fail


def only_reading(code: int) -> Callable[..., int]:
    opening = os.open

    def open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(code, os.strerror(code), str(path))
        return opening(path, flags, *args, **kwargs)

    return open


def gives_up_once(store: Store, reason: str) -> None:
    with pytest.warns(CacheWarning, match=rf"in memory only from here on: cannot write to .*{reason}") as warned:
        assert not store.put("program", OTHER, b"new", {})
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not store.put("program", OTHER, b"new", {}) and not store.writable()
        with store.locked("program", OTHER) as locked:
            assert not locked
        entry = store.get("program", KEY)
    assert entry is not None and entry.payload == b"kept", "what is there is read all the same"
    assert store.root is not None and list((store.root / "temporary").iterdir()) == []
    assert [entry.key for entry in store.entries()] == [KEY]


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
def test_full_disk_stops_writing(store: Store, monkeypatch: pytest.MonkeyPatch, where: str, code: int):
    monkeypatch.setattr(os, where, failing(code))
    gives_up_once(store, os.strerror(code))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit files to `size` bytes: the kernel then fails with EFBIG in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_write_stopped_halfway_leaves_no_file(store: Store):
    with largest_file(4096), pytest.warns(CacheWarning, match="File too large") as warned:
        stored = store.put("program", OTHER, bytes(100_000), {})
    assert not stored and len(warned) == 1
    assert store.root is not None and list((store.root / "temporary").iterdir()) == []
    assert [entry.key for entry in store.entries()] == [KEY]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
def test_read_only_folder_stops_writing(store: Store, monkeypatch: pytest.MonkeyPatch, code: int):
    monkeypatch.setattr(os, "open", only_reading(code))
    gives_up_once(store, os.strerror(code))


def test_folder_that_cannot_be_created_stops_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "mkdir", failing(errno.EROFS))
    cache = Store(tmp_path / "cache")
    with pytest.warns(CacheWarning, match="Read-only file system"):
        assert not cache.put("program", KEY, b"x", {})
    assert cache.get("program", KEY) is None and not cache.put("program", KEY, b"x", {})


def test_file_system_without_locks_stops_writing(store: Store, monkeypatch: pytest.MonkeyPatch):
    from lazytpu.runtime.cache import locks

    monkeypatch.setattr(locks.fcntl, "flock", failing(errno.ENOLCK))
    with pytest.warns(CacheWarning, match="No locks available"), store.locked("program", OTHER) as locked:
        assert not locked
    assert not store.put("program", OTHER, b"new", {})
    entry = store.get("program", KEY)
    assert entry is not None and entry.payload == b"kept"


def test_temporarily_unreadable_entry_stays(store: Store, monkeypatch: pytest.MonkeyPatch):
    """With too many open files, the entry is valid all the same."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EMFILE))
        with pytest.warns(CacheWarning, match=r"cannot read the cached program .*Too many open files"):
            assert store.get("program", KEY) is None
    entry = store.get("program", KEY)
    assert entry is not None and entry.payload == b"kept"


def test_irremovable_damaged_entry_is_reported_once(store: Store, monkeypatch: pytest.MonkeyPatch):
    assert store.root is not None
    path = store.root / "entries" / f"{KEY}.program"
    path.write_bytes(b"damaged")
    monkeypatch.setattr(Path, "unlink", failing(errno.EROFS))
    with pytest.warns(CacheWarning, match=r"it is not used; removing it failed \(Read-only file system\)"):
        assert store.get("program", KEY) is None
    assert store.get("program", KEY) is None  # a second warning would be an error
