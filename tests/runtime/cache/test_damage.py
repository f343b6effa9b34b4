"""Bytes that differ from the written ones: never served, removed with one warning, never unpickled."""

from __future__ import annotations

import os
import pickle
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from lazytpu.runtime.cache.entry import DIGEST_AT, FIXED, HEADER_AT, HITS_AT
from lazytpu.runtime.cache.store import CacheWarning, Store

KEY, OTHER = "a" * 64, "b" * 64
PAYLOAD = bytes(range(256)) * 4


@pytest.fixture
def store(tmp_path: Path) -> Store:
    new_store = Store(tmp_path / "cache", limit=0)
    new_store.put("program", KEY, PAYLOAD, {"name": "step"})
    return new_store


def file(store: Store, key: str = KEY) -> Path:
    assert store.root is not None
    return store.root / "entries" / f"{key}.program"


def refused(store: Store, reason: str = "") -> None:
    """The entry is a miss with one warning, and an ordinary miss afterwards; a new entry replaces it."""
    message = rf"the cached program {KEY[:16]} in .* is damaged or foreign: .*{reason}"
    with pytest.warns(CacheWarning, match=message) as warned:
        assert store.get("program", KEY) is None
    assert len(warned) == 1
    assert not file(store).exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get("program", KEY) is None
        assert store.put("program", KEY, PAYLOAD, {})
        entry = store.get("program", KEY)
    assert entry is not None and entry.payload == PAYLOAD
    assert store.stats.rejected["program"] == 1


def header_length(data: bytes) -> int:
    return FIXED.unpack_from(data)[2]


PLACES: dict[str, Callable[[bytes], int]] = {
    "magic": lambda data: 0,
    "last of magic": lambda data: 7,
    "version": lambda data: 8,
    "length of the header": lambda data: 12,
    "high byte of the length of the header": lambda data: 15,
    "length of the payload": lambda data: 16,
    "high byte of the length of the payload": lambda data: 23,
    "digest": lambda data: DIGEST_AT,
    "last of the digest": lambda data: HEADER_AT - 1,
    "header": lambda data: HEADER_AT,
    "last of the header": lambda data: HEADER_AT + header_length(data) - 1,
    "payload": lambda data: HEADER_AT + header_length(data),
    "middle of the payload": lambda data: len(data) - len(PAYLOAD) // 2,
    "last of the payload": lambda data: len(data) - 1,
}


@pytest.mark.parametrize("bit", [0x01, 0x80])
@pytest.mark.parametrize("place", PLACES)
def test_single_bit_flips_are_refused(store: Store, place: str, bit: int):
    data = bytearray(file(store).read_bytes())
    data[PLACES[place](bytes(data))] ^= bit
    file(store).write_bytes(data)
    refused(store)


def test_only_the_counter_may_change(store: Store):
    """It is written in place, by processes that do not synchronize."""
    data = bytearray(file(store).read_bytes())
    data[HITS_AT] ^= 0xFF
    file(store).write_bytes(data)
    entry = store.get("program", KEY)
    assert entry is not None and entry.payload == PAYLOAD


@pytest.mark.parametrize(
    "kept", [0, 1, 8, HITS_AT, DIGEST_AT, HEADER_AT - 1, HEADER_AT, HEADER_AT + 10, -len(PAYLOAD), -1]
)
def test_truncated_files_are_refused(store: Store, kept: int):
    file(store).write_bytes(file(store).read_bytes()[:kept])
    refused(store, "it has")


def test_zeros_of_the_right_length_are_refused(store: Store):
    """A file system may leave such a file when the machine loses power."""
    file(store).write_bytes(bytes(file(store).stat().st_size))
    refused(store, "no file of this cache")


def test_additional_bytes_are_refused(store: Store):
    file(store).write_bytes(file(store).read_bytes() + b"\0")
    refused(store, "bytes of")


def test_entry_of_another_key_is_refused(store: Store):
    store.put("program", OTHER, b"another program", {})
    os.replace(file(store, OTHER), file(store))
    refused(store, f"it was written as program {OTHER}")


def test_entry_of_another_kind_is_refused(store: Store):
    store.put("trace", KEY, b"{}", {})
    assert store.root is not None
    os.replace(store.root / "entries" / f"{KEY}.trace", file(store))
    refused(store, "it was written as trace")


def test_later_format_is_refused(store: Store):
    data = bytearray(file(store).read_bytes())
    struct.pack_into("<I", data, 8, 2)
    file(store).write_bytes(data)
    refused(store, "version 2; this lazytpu reads version 1")


@pytest.mark.parametrize("header", [b"", b"[]", b"null", b'{"kind": "program"}', b"\xff\xfe", b"[" * 100_000])
def test_invalid_header_is_refused(store: Store, header: bytes):
    """Its digest is valid: other code wrote it."""
    import hashlib

    fixed = FIXED.pack(b"lazytpu\n", 1, len(header), len(PAYLOAD))
    digest = hashlib.sha256(fixed + header + PAYLOAD).digest()
    file(store).write_bytes(fixed + bytes(8) + digest + header + PAYLOAD)
    refused(store, "its header cannot be read")


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (str(Bomb.mark),)

    mark = Path()


def test_nothing_is_unpickled(store: Store, tmp_path: Path):
    Bomb.mark = tmp_path / "executed"
    file(store).write_bytes(pickle.dumps(Bomb()))
    refused(store, "no file of this cache|none has fewer")
    assert not Bomb.mark.exists()


def test_symbolic_link_is_not_followed(store: Store, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    os.replace(file(store), elsewhere)
    file(store).symlink_to(elsewhere)
    refused(store, "symbolic link")
    assert elsewhere.exists()


def test_pipe_does_not_block(store: Store):
    file(store).unlink()
    os.mkfifo(file(store))
    refused(store, "it is no file")


def test_folders_among_the_files_are_skipped(store: Store):
    assert store.root is not None
    (store.root / "entries" / f"{OTHER}.program").mkdir()
    (store.root / "temporary" / "old").mkdir()
    (store.root / "locks" / "old").mkdir()
    limited_store = Store(store.root, limit=1)
    with pytest.warns(CacheWarning, match="it is no file; it is not used; removing it failed"):
        assert limited_store.get("program", OTHER) is None
    assert [listed.key for listed in limited_store.entries()] == [KEY]
    assert limited_store.verify() == [] and limited_store.making() == []
    assert limited_store.writable() and limited_store.evict(1) == 1


def test_files_of_other_users_are_not_read(store: Store, monkeypatch: pytest.MonkeyPatch):
    """Another user who could once write into the folder may have left some."""
    mine = os.geteuid()
    status = os.fstat

    def of_another(opened: int) -> os.stat_result:
        statuses = list(status(opened))
        statuses[4] = mine + 1
        return os.stat_result(statuses)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", of_another)
        with pytest.warns(CacheWarning, match="it belongs to another user"):
            assert store.get("program", KEY) is None


def test_verify_checks_digests(store: Store):
    store.put("program", OTHER, PAYLOAD, {})
    data = file(store).read_bytes()
    file(store).write_bytes(data[:-1] + b"?")
    assert [entry.damage for entry in store.entries()] == [None, None]
    (damaged,) = store.verify()
    assert damaged.key == KEY and damaged.damage is not None and "digest" in damaged.damage
    assert [entry.key for entry in store.entries()] == [OTHER]
