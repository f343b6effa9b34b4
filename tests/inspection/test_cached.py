"""`lazytpu-show cache`: list, verify and clear the cache."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lazytpu.inspection.show import main
from lazytpu.inspection.units import age, size
from lazytpu.runtime.cache.store import Store

KEYS = ("ab" * 32, "cd" * 32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache of two entries; the first was read once, and is the most recently used one."""
    store = Store(tmp_path / "cache")
    store.put("program", KEYS[0], bytes(20_000), {"name": "train_step"})
    store.put("trace", KEYS[1], b"{}", {})
    store.get("program", KEYS[0])
    os.utime(tmp_path / "cache/entries" / f"{KEYS[1]}.trace", (1e9, 1e9))
    return tmp_path / "cache"


def show(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, list[str]]:
    status = main(["cache", *map(str, arguments)])
    return status, capsys.readouterr().out.strip().splitlines()


def test_the_table(folder: Path, capsys: pytest.CaptureFixture[str]):
    status, (head, first, second, summary) = show(capsys, "--dir", folder)
    assert status == 0
    assert head.split() == ["key", "kind", "program", "age", "size", "last", "use", "hits"]
    assert first.split()[:3] == ["abababababab", "program", "train_step"]
    assert re.search(r" 20\.\d kB ", first) and first.split()[-1] == "1"
    assert second.split()[:2] == ["cdcdcdcdcdcd", "trace"] and second.split()[-1] == "0"
    assert re.match(r"2 entries, 20\.\d kB of 10\.0 GB, in ", summary) and summary.endswith("/cache")


def test_compilations_in_progress_are_listed_below(folder: Path, capsys: pytest.CaptureFixture[str]):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    about = {"name": "train", "ops": 1234, "estimate": 40.0, "for": os.getpid()}
    store = Store(folder)
    with store.locked("program", "12" * 32, about), store.locked("program", "34" * 32, {"name": "b", "for": ended.pid}):
        _, (_, _, _, head, first, second, _) = show(capsys, "--dir", folder)
    mine = str(os.getpid())
    assert head.split() == ["in", "the", "making", "kind", "program", "ops", "since", "by", "process", "for"]
    assert first.split() == ["121212121212", "program", "train", "1,234", "0", "s", "of", "40", "s", mine, mine]
    assert second.split() == ["343434343434", "program", "b", "0", "s", mine, f"{ended.pid},", "ended"]


def test_verify_removes_damaged_entries(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert show(capsys, "--dir", folder, "--verify")[0] == 0
    path = folder / "entries" / f"{KEYS[0]}.program"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    status, (removed, summary) = show(capsys, "--dir", folder, "--verify")
    assert status == 1
    assert removed.startswith("removed program abababababab: its bytes do not have the digest")
    assert summary.startswith("2 entries read, 1 damaged") and not path.exists()


def test_damage_that_the_header_shows_is_in_the_table(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "entries" / f"{KEYS[0]}.program").write_text("hello")
    _, lines = show(capsys, "--dir", folder)
    assert any("damaged: it has 5 bytes" in line for line in lines)


def test_clear(folder: Path, capsys: pytest.CaptureFixture[str]):
    assert show(capsys, "--dir", folder, "--clear") == (0, [f"removed 2 entries from {folder}"])
    assert show(capsys, "--dir", folder) == (0, [f"0 entries, 0 B of 10.0 GB, in {folder}"])


def test_no_cache_is_an_error_that_says_why(capsys: pytest.CaptureFixture[str]):
    from lazytpu.options import options

    with options(cache_dir="off"):
        assert main(["cache"]) == 2
    assert "LAZYTPU_CACHE_DIR is empty or off" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (3 * 3600, "3 h"), (5 * 86400, "5 days")]
)
def test_ages(seconds: float, text: str):
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (9_999, "9,999 B"), (20_480, "20.5 kB"), (5 * 10**6, "5,000 kB"), (10**11, "100.0 GB")],
)
def test_sizes(count: int, text: str):
    assert size(count) == text
