"""What is in the making: the locks that are held, and what their holders say."""

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


def test_what_is_made_is_listed_while_it_is(store: Store):
    assert store.making() == [], "there is no folder yet"
    before = time.time()
    with store.locked("program", KEYS[0], {"name": "train", "ops": 1234}), store.locked("tpu", KEYS[1]):
        first, second = store.making()
    assert (first.kind, first.key, first.about) == ("program", KEYS[0], {"name": "train", "ops": 1234})
    assert first.by == f"process {os.getpid()} on {socket.gethostname()}" == second.by
    assert before <= first.since <= second.since <= time.time()
    assert (second.kind, second.about) == ("tpu", {})
    assert store.making() == []


def test_the_locks_of_the_dead_are_not_listed_and_are_swept(store: Store):
    assert store.writable() and store.root is not None
    left = store.root / "locks" / f"{KEYS[0]}.program"
    left.write_text('process 1 on earth\n{"since": 1.0, "about": {"name": "left behind"}}')
    assert store.making() == []
    store.evict(10**9)
    assert not left.exists()


@pytest.mark.parametrize("said", ["", "process 1 on earth\n", "process 1 on earth\n[]", 'x\n{"since": "now"}'])
def test_a_lock_that_says_nothing_one_can_read_is_passed_over(store: Store, said: str):
    """As one is for an instant, before its holder has written."""
    assert store.writable() and store.root is not None
    path = store.root / "locks" / f"{KEYS[0]}.program"
    held = locks.acquire(path, 1)
    assert held is not None
    os.ftruncate(held, 0)
    os.pwrite(held, said.encode(), 0)
    assert store.making() == []
    locks.release(path, held)


def test_looking_holds_up_nobody(store: Store):
    with store.locked("program", KEYS[0]):
        assert len(store.making()) == 1
    with store.locked("program", KEYS[0]) as held:
        assert held


def test_the_holder_is_named_alone(store: Store):
    assert store.root is not None
    with store.locked("program", KEYS[0], {"name": "train"}):
        assert (
            locks.holder(store.root / "locks" / f"{KEYS[0]}.program")
            == f"process {os.getpid()} on {socket.gethostname()}"
        )


def test_what_a_dead_holder_said_is_not_mixed_with_what_the_next_says(store: Store):
    assert store.writable() and store.root is not None
    (store.root / "locks" / f"{KEYS[0]}.program").write_text("x" * 5000)
    with store.locked("program", KEYS[0], {"name": "train"}):
        (making,) = store.making()
    assert making.about == {"name": "train"}
