"""Libraries: exactly the packed entries are unpacked on another machine."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lazytpu.runtime.cache import library
from lazytpu.runtime.cache.library import BadLibrary, Unpacked, pack, unpack
from lazytpu.runtime.cache.store import CacheWarning, Store

HERE = {"platform": "cpu", "jaxlib": "0.10.2"}
KEYS = ("ab" * 32, "cd" * 32, "ef" * 32)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A library of a program and of its trace, both for `HERE`."""
    kept = Store(tmp_path / "cache")
    kept.put("program", KEYS[0], bytes(range(256)) * 40, {"name": "train_step", "made_for": HERE})
    kept.put("trace", KEYS[1], b"{}", {"name": "train_step", "made_for": HERE})
    assert pack(kept, tmp_path / "library.zip") == 2
    return tmp_path / "library.zip"


def test_packed_entries_are_unpacked(packed: Path, tmp_path: Path) -> None:
    other_store = Store(tmp_path / "there")
    assert unpack(other_store, packed, {**HERE, "torch": "2.13"}) == Unpacked(stored=2)
    entry = other_store.get("program", KEYS[0])
    assert entry is not None and entry.payload == bytes(range(256)) * 40 and entry.about["name"] == "train_step"
    assert unpack(other_store, packed, HERE) == Unpacked(present=2)


def test_entries_for_another_environment_are_refused_with_the_differences(packed: Path, tmp_path: Path) -> None:
    other_store = Store(tmp_path / "there")
    outcome = unpack(other_store, packed, {"platform": "tpu", "jaxlib": "0.10.2"})
    assert not other_store.entries()
    (foreign,) = outcome.refused
    assert foreign.differs == {"platform": ("cpu", "tpu")}
    assert str(outcome).splitlines() == [
        "0 entries can be used here (0 of them were in the cache already)",
        "2 are for another environment (program train_step, trace train_step), and were refused:",
        "  platform: cpu there, tpu here",
    ]


def test_mixed_library_stores_the_compatible_entries(tmp_path: Path) -> None:
    kept = Store(tmp_path / "cache")
    kept.put("program", KEYS[0], b"ours", {"made_for": HERE})
    kept.put("program", KEYS[1], b"theirs", {"made_for": {**HERE, "host": "another"}})
    kept.put("program", KEYS[2], b"whose?", {})
    pack(kept, tmp_path / "library.zip")
    other_store = Store(tmp_path / "there")
    outcome = unpack(other_store, tmp_path / "library.zip", HERE)
    assert (outcome.stored, [len(refusal.names) for refusal in outcome.refused]) == (1, [1, 1])
    assert [entry.key for entry in other_store.entries()] == [KEYS[0]]


def test_library_is_readable_for_all_whom_the_umask_allows_it(packed: Path) -> None:
    beside = packed.with_name("beside")
    beside.touch()
    assert packed.stat().st_mode == beside.stat().st_mode


def test_empty_cache_is_not_packed(tmp_path: Path) -> None:
    (tmp_path / "library.zip").write_bytes(b"before")
    with pytest.raises(ValueError, match="holds nothing to pack"):
        pack(Store(tmp_path / "cache"), tmp_path / "library.zip")
    assert (tmp_path / "library.zip").read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["library.zip"], "nothing half written is left"


def test_damaged_entries_are_not_packed(packed: Path, tmp_path: Path) -> None:
    entry = tmp_path / "cache" / "entries" / f"{KEYS[0]}.program"
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    with pytest.warns(CacheWarning, match="damaged"):
        assert pack(Store(tmp_path / "cache"), tmp_path / "rest.zip") == 1


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Return a copy of a library whose members `change` has changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    changed = path.with_name("changed.zip")
    with zipfile.ZipFile(changed, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return changed


PROGRAM = f"entries/{KEYS[0]}.program"


def _manifest(change: Callable[[dict[str, object]], object]) -> Callable[[dict[str, bytes]], None]:
    def apply(members: dict[str, bytes]) -> None:
        manifest = json.loads(members["manifest.json"])
        change(manifest)
        members["manifest.json"] = json.dumps(manifest).encode()

    return apply


def _renamed(name: str, kind: str, key: str) -> Callable[[dict[str, bytes]], None]:
    def apply(members: dict[str, bytes]) -> None:
        _manifest(lambda manifest: manifest["entries"][0].update(kind=kind, key=key))(members)  # pyright: ignore
        members[name] = members.pop(PROGRAM)

    return apply


DAMAGE: dict[str, Callable[[dict[str, bytes]], object]] = {
    "a byte of an entry": lambda members: members.update({PROGRAM: members[PROGRAM][:-1] + b"?"}),
    "an entry cut short": lambda members: members.update({PROGRAM: members[PROGRAM][:-1]}),
    "an entry without bytes": lambda members: members.update({PROGRAM: b""}),
    "an entry missing": lambda members: members.pop(PROGRAM),
    "a file too many": lambda members: members.update({"entries/more": b""}),
    "a path out of the folder": _renamed("entries/../../escape.program", "program", "../../escape"),
    "an absolute path": _renamed("entries//escape.program", "program", "/escape"),
    "an entry under another key": _renamed(f"entries/{KEYS[2]}.program", "program", KEYS[2]),
    "an entry of an unknown kind": _renamed(f"entries/{KEYS[0]}.script", "script", KEYS[0]),
    "no manifest": lambda members: members.pop("manifest.json"),
    "a manifest that is no JSON": lambda members: members.update({"manifest.json": b"{"}),
    "a manifest of something else": _manifest(lambda manifest: manifest.update(format="zip")),
    "a later version": _manifest(lambda manifest: manifest.update(version=library.VERSION + 1)),
    "a manifest without entries": _manifest(lambda manifest: manifest.pop("entries")),
    "a manifest of numbers": _manifest(lambda manifest: manifest.update(entries=[1])),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_library_stores_nothing(packed: Path, tmp_path: Path, damage: str) -> None:
    changed = rewritten(packed, lambda members: DAMAGE[damage](members) and None)
    other_store = Store(tmp_path / "there")
    with pytest.raises(BadLibrary, match=r"changed\.zip is no library that can be used"):
        unpack(other_store, changed, HERE)
    assert other_store.entries() == [] and not (tmp_path / "escape.program").exists()


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06", b"no zip at all"])
def test_file_that_is_not_a_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(BadLibrary):
        unpack(Store(tmp_path / "there"), tmp_path / "file", HERE)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_truncated_library_is_refused(packed: Path, tmp_path: Path, part: float) -> None:
    contents = packed.read_bytes()
    packed.write_bytes(contents[: int(part * len(contents))])
    with pytest.raises(BadLibrary):
        unpack(Store(tmp_path / "there"), packed, HERE)


def test_unwritable_cache_is_reported(packed: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    with pytest.warns(CacheWarning), pytest.raises(OSError, match="cannot be stored"):
        unpack(Store(blocked / "cache"), packed, HERE)
