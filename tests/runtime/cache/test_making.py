"""Entries in progress: held locks, and the notes of their holders."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from lazytpu.runtime.cache import locks
from lazytpu.runtime.cache.store import Store

KEYS = [f"{i:064x}" for i in range(3)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def test_entry_in_progress_is_listed(store: Store):
    assert store.making() == [], "there is no folder yet"
    before = time.time()
    with store.locked("program", KEYS[0], {"name": "train", "ops": 1234}), store.locked("tpu", KEYS[1]):
        first, second = store.making()
    assert (first.kind, first.key, first.about) == ("program", KEYS[0], {"name": "train", "ops": 1234})
    assert first.by == f"process {os.getpid()} on {socket.gethostname()}" == second.by
    assert before <= first.since <= second.since <= time.time()
    assert (second.kind, second.about) == ("tpu", {})
    assert store.making() == []


def test_locks_of_dead_processes_are_swept_and_not_listed(store: Store):
    assert store.writable() and store.root is not None
    lock_file = store.root / "locks" / f"{KEYS[0]}.program"
    lock_file.write_text('process 1 on earth\n{"since": 1.0, "about": {"name": "left behind"}}')
    assert store.making() == []
    store.evict(10**9)
    assert not lock_file.exists()


@pytest.mark.parametrize("said", ["", "process 1 on earth\n", "process 1 on earth\n[]", 'x\n{"since": "now"}'])
def test_unreadable_note_is_skipped(store: Store, said: str):
    """A lock file is empty for an instant, before its holder has written the note."""
    assert store.writable() and store.root is not None
    path = store.root / "locks" / f"{KEYS[0]}.program"
    descriptor = locks.acquire(path, 1)
    assert descriptor is not None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, said.encode(), 0)
    assert store.making() == []
    locks.release(path, descriptor)


def test_listing_does_not_block_lockers(store: Store):
    with store.locked("program", KEYS[0]):
        assert len(store.making()) == 1
    with store.locked("program", KEYS[0]) as locked:
        assert locked


def test_only_the_holder_is_named(store: Store):
    assert store.root is not None
    with store.locked("program", KEYS[0], {"name": "train"}):
        assert (
            locks.holder(store.root / "locks" / f"{KEYS[0]}.program")
            == f"process {os.getpid()} on {socket.gethostname()}"
        )


def test_note_of_a_dead_holder_is_overwritten(store: Store):
    assert store.writable() and store.root is not None
    (store.root / "locks" / f"{KEYS[0]}.program").write_text("x" * 5000)
    with store.locked("program", KEYS[0], {"name": "train"}):
        (making,) = store.making()
    assert making.about == {"name": "train"}
