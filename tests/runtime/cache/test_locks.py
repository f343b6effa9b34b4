"""Mutual exclusion: threads, waiting, and its time limit. Killed holders are in test_killed.py."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lazytpu.runtime.cache import locks
from lazytpu.runtime.cache.store import CacheWarning, Store
from tests import zygote

KEY = "a" * 64


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_only_one_thread_creates_the_entry(root: Path):
    """Eight threads behave as processes would: one creates the entry, the others read it."""
    makers = []

    def obtain(i: int) -> bytes:
        store = Store(root)
        with store.locked("program", KEY):
            entry = store.get("program", KEY)
            if entry is None:
                makers.append(i)
                store.put("program", KEY, b"%d" % i, {})
                entry = store.get("program", KEY)
        assert entry is not None
        return entry.payload

    with ThreadPoolExecutor(8) as pool:
        payloads = set(pool.map(obtain, range(8)))
    assert len(makers) == 1 and payloads == {b"%d" % makers[0]}
    assert list((root / "locks").iterdir()) == []


def test_names_do_not_wait_for_each_other(root: Path):
    with Store(root).locked("program", KEY) as first, Store(root).locked("trace", KEY) as second:
        assert first and second


def test_wait_is_limited_and_names_the_holder(root: Path):
    with Store(root).locked("program", KEY) as first:
        assert first
        waiting = Store(root, patience=0.05)
        message = r"process \d+ on .* is making program a{16}, and works on it since over 0 s"
        with pytest.warns(CacheWarning, match=message), waiting.locked("program", KEY) as locked:
            assert not locked
        assert waiting.stats.waited >= 0.05
    with Store(root).locked("program", KEY) as locked:
        assert locked


HOLDING = """
import sys, time
from pathlib import Path
from lazytpu.runtime.cache.store import Store
with Store(Path(sys.argv[1])).locked("program", sys.argv[2]):
    time.sleep(60)
"""


def test_stopped_holder_is_not_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "STOPPED_PATIENCE", 0.1)
    holding = zygote.Process(["-c", HOLDING, str(root), KEY])
    try:
        while not any(path.read_text() for path in root.glob("locks/*")):
            assert holding.poll() is None
            time.sleep(0.01)
        os.kill(holding.pid, signal.SIGSTOP)
        with pytest.warns(CacheWarning, match="has stopped"), Store(root).locked("program", KEY) as locked:
            assert not locked
    finally:
        os.kill(holding.pid, signal.SIGKILL)
        holding.wait(60)


def test_entry_ends_the_wait_before_the_lock(root: Path):
    done = threading.Event()

    def hold() -> None:
        store = Store(root)
        with store.locked("program", KEY):
            started.set()
            store.put("program", KEY, b"x", {})
            done.wait(60)

    started = threading.Event()
    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert started.wait(60)
        with Store(root).locked("program", KEY) as locked:
            assert not locked
            assert Store(root).get("program", KEY) is not None
    finally:
        done.set()
        holder.join()


def test_error_releases_the_lock(root: Path):
    with pytest.raises(KeyboardInterrupt), Store(root).locked("program", KEY):
        raise KeyboardInterrupt
    assert list((root / "locks").iterdir()) == []


def test_lock_on_a_removed_file_is_not_taken(tmp_path: Path):
    """The waiter has the old file open when the holder removes it: a lock on it excludes nobody."""
    path = tmp_path / "lock"
    first = locks.acquire(path, 1.0)
    assert first is not None
    taken: list[int | None] = []
    waiter = threading.Thread(target=lambda: taken.append(locks.acquire(path, 60.0)))
    waiter.start()
    locks.release(path, first)
    waiter.join()
    assert taken[0] is not None and path.exists()
    assert locks.acquire(path, 0.0) is None
    locks.release(path, taken[0])
    assert not path.exists()
    assert locks.holder(path) == "a process that is done by now"
