"""A folder that cannot be written: one warning, what is on disk is still read, and nothing is left behind."""

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
    """A store with one entry, by a process that has just come to it."""
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
        with store.locked("program", OTHER) as held:
            assert not held
        entry = store.get("program", KEY)
    assert entry is not None and entry.payload == b"kept", "what is there is read all the same"
    assert store.root is not None and list((store.root / "temporary").iterdir()) == []
    assert [entry.key for entry in store.entries()] == [KEY]


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
def test_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch, where: str, code: int):
    monkeypatch.setattr(os, where, failing(code))
    gives_up_once(store, os.strerror(code))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The kernel refuses to write files of more than `size` bytes: EFBIG in the middle of a write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_write_that_the_kernel_stops_halfway(store: Store):
    with largest_file(4096), pytest.warns(CacheWarning, match="File too large") as warned:
        stored = store.put("program", OTHER, bytes(100_000), {})
    assert not stored and len(warned) == 1
    assert store.root is not None and list((store.root / "temporary").iterdir()) == []
    assert [entry.key for entry in store.entries()] == [KEY]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
def test_a_folder_that_is_only_for_reading(store: Store, monkeypatch: pytest.MonkeyPatch, code: int):
    monkeypatch.setattr(os, "open", only_reading(code))
    gives_up_once(store, os.strerror(code))


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "mkdir", failing(errno.EROFS))
    cache = Store(tmp_path / "cache")
    with pytest.warns(CacheWarning, match="Read-only file system"):
        assert not cache.put("program", KEY, b"x", {})
    assert cache.get("program", KEY) is None and not cache.put("program", KEY, b"x", {})


def test_a_file_system_without_locks(store: Store, monkeypatch: pytest.MonkeyPatch):
    from lazytpu.runtime.cache import locks

    monkeypatch.setattr(locks.fcntl, "flock", failing(errno.ENOLCK))
    with pytest.warns(CacheWarning, match="No locks available"), store.locked("program", OTHER) as held:
        assert not held
    assert not store.put("program", OTHER, b"new", {})
    entry = store.get("program", KEY)
    assert entry is not None and entry.payload == b"kept"


def test_an_entry_that_cannot_be_read_now_stays(store: Store, monkeypatch: pytest.MonkeyPatch):
    """Too many open files: the entry is as good as before."""
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing(errno.EMFILE))
        with pytest.warns(CacheWarning, match=r"cannot read the cached program .*Too many open files"):
            assert store.get("program", KEY) is None
    entry = store.get("program", KEY)
    assert entry is not None and entry.payload == b"kept"


def test_a_damaged_entry_that_cannot_be_removed_is_reported_once(store: Store, monkeypatch: pytest.MonkeyPatch):
    assert store.root is not None
    path = store.root / "entries" / f"{KEY}.program"
    path.write_bytes(b"damaged")
    monkeypatch.setattr(Path, "unlink", failing(errno.EROFS))
    with pytest.warns(CacheWarning, match=r"it is not used; removing it failed \(Read-only file system\)"):
        assert store.get("program", KEY) is None
    assert store.get("program", KEY) is None  # a second warning would be an error
