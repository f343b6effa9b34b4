"""Stored entries are read back unchanged; names, listing, total size, and order of eviction."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lazytpu.runtime.cache import ledger
from lazytpu.runtime.cache.store import Store

KEY, OTHER, THIRD = "a" * 64, "b" * 64, "c" * 64


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(root: Path) -> Store:
    return Store(root, limit=0)


def used(root: Path, key: str, seconds: float) -> None:
    """Set the time of an entry's last use."""
    os.utime(root / "entries" / f"{key}.program", (seconds, seconds))


def test_entries_are_read_by_other_processes(store: Store, root: Path):
    payload = bytes(range(256)) * 10
    assert store.get("program", KEY) is None
    assert store.put("program", KEY, payload, {"name": "step", "shape": [1, 2]})
    for reader in (store, Store(root)):
        entry = reader.get("program", KEY)
        assert entry is not None
        assert (entry.kind, entry.key, entry.payload) == ("program", KEY, payload)
        assert entry.about == {"name": "step", "shape": [1, 2]}
    assert store.stats.hits["program"] == store.stats.misses["program"] == store.stats.stored["program"] == 1


def test_kinds_are_separate(store: Store):
    store.put("program", KEY, b"executable", {})
    store.put("trace", KEY, b"{}", {})
    entry = store.get("trace", KEY)
    assert entry is not None and entry.payload == b"{}"
    assert [entry.kind for entry in store.entries("program")] == ["program"]


def test_later_entry_replaces_an_earlier_one(store: Store):
    store.put("trace", KEY, b"first", {})
    store.put("trace", KEY, b"second", {})
    entry = store.get("trace", KEY)
    assert entry is not None and entry.payload == b"second"
    assert len(store.entries()) == 1


def test_empty_payload_is_stored(store: Store):
    store.put("trace", KEY, b"", {})
    entry = store.get("trace", KEY)
    assert entry is not None and entry.payload == b""


@pytest.mark.parametrize(("kind", "key"), [("program", "../../etc/passwd"), ("program", "AB" * 32), ("../x", KEY)])
def test_names_cannot_leave_the_folder(store: Store, kind: str, key: str):
    with pytest.raises(ValueError, match="named by a word and a digest"):
        store.put(kind, key, b"", {})


def test_values_that_are_not_json_are_refused(store: Store):
    with pytest.raises(TypeError):
        store.put("program", KEY, b"", {"name": object()})
    assert store.entries() == []


def test_reads_are_counted_and_renew_the_entry(store: Store, root: Path):
    store.put("program", KEY, b"x", {"name": "step"})
    used(root, KEY, 1000.0)
    for _ in range(3):
        store.get("program", KEY)
    (listed,) = store.entries()
    assert listed.hits == 3
    assert listed.used > 1e9
    assert (listed.about, listed.damage) == ({"name": "step"}, None)
    assert listed.size == store.size() == (root / "entries" / f"{KEY}.program").stat().st_size


def test_nothing_is_created_before_the_first_write(store: Store, root: Path):
    assert store.get("program", KEY) is None
    assert store.entries() == [] and store.size() == 0 and store.clear() == 0 and store.evict(0) == 0
    assert not root.exists()


def test_store_without_a_folder_keeps_nothing():
    nothing = Store(None)
    assert not nothing.put("program", KEY, b"x", {})
    assert nothing.get("program", KEY) is None
    with nothing.locked("program", KEY) as locked:
        assert not locked
    assert nothing.entries() == [] and nothing.clear() == 0


def test_least_recently_used_entries_are_evicted_first(root: Path):
    store = Store(root, limit=2500)
    store.put("program", KEY, bytes(700), {})
    store.put("program", OTHER, bytes(700), {})
    used(root, KEY, 2000.0)
    used(root, OTHER, 1000.0)
    store.get("program", OTHER)  # now KEY is the older one
    store.put("program", THIRD, bytes(1000), {})
    assert {entry.key for entry in store.entries()} == {OTHER, THIRD}
    assert store.stats.evicted == 1
    assert store.size() <= 0.9 * 2500


def test_entry_larger_than_the_limit_is_not_stored(root: Path):
    store = Store(root, limit=1000)
    store.put("program", KEY, bytes(500), {})
    assert not store.put("program", OTHER, bytes(1001), {})
    assert [entry.key for entry in store.entries()] == [KEY]


def test_write_scans_only_above_the_limit(root: Path, monkeypatch: pytest.MonkeyPatch):
    walks: list[Path] = []
    walk = ledger.walk
    monkeypatch.setattr(ledger, "walk", lambda folder: walks.append(folder) or walk(folder))
    monkeypatch.setattr(ledger, "RECOUNT", 30)
    store = Store(root, limit=50_000)
    for i in range(29):
        store.put("program", f"{i:064x}", bytes(1000), {})
    assert len(walks) == 1  # a folder without a ledger has to be scanned once
    for i in range(30):
        store.put("program", f"{i:064x}", bytes(1000), {})
    assert len(walks) == 2
    for i in range(29):
        store.put("program", f"{100 + i:064x}", bytes(1000), {})
    assert 3 <= len(walks) <= 9, "a tenth of the limit is made free each time: 4 entries"
    assert store.stats.evicted and store.size() <= 50_000


def test_evicting_and_clearing(store: Store):
    for key in (KEY, OTHER, THIRD):
        store.put("program", key, bytes(1000), {})
    assert store.evict(2500) == 1
    assert store.remove("program", THIRD) and not store.remove("program", THIRD)
    assert store.clear() == 1
    assert store.entries() == [] and store.put("program", KEY, b"again", {})


def test_folder_is_private_and_tagged_for_backups(store: Store, root: Path):
    store.put("program", KEY, b"x", {})
    assert root.stat().st_mode & 0o777 == 0o700
    assert (root / "entries" / f"{KEY}.program").stat().st_mode & 0o777 == 0o600
    assert (root / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n")
    assert list((root / "temporary").iterdir()) == list((root / "locks").iterdir()) == []
