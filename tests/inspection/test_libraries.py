"""`lazytpu-show pack` and `unpack`."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazytpu.inspection.show import main
from lazytpu.options import options
from lazytpu.runtime.cache.store import Store
from lazytpu.runtime.cache.translation import environment

KEYS = ("ab" * 32, "cd" * 32)


def test_a_library_from_one_cache_to_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store(tmp_path / "cache").put("program", KEYS[0], b"code", {"name": "step", "made_for": dict(environment())})
    library = tmp_path / "library.zip"
    assert main(["pack", str(library), "--dir", str(tmp_path / "cache")]) == 0
    assert capsys.readouterr().out.startswith(f"1 entries are in {library}, ")
    assert main(["unpack", str(library), "--dir", str(tmp_path / "there")]) == 0
    assert capsys.readouterr().out == "1 entries can be used here (0 of them were in the cache already)\n"
    assert [entry.key for entry in Store(tmp_path / "there").entries()] == [KEYS[0]]


def test_refused_entries_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_for = {**environment(), "jaxlib": "0.1"}
    Store(tmp_path / "cache").put("program", KEYS[0], b"code", {"name": "step", "made_for": made_for})
    library = tmp_path / "library.zip"
    with options(cache_dir=tmp_path / "cache"):
        assert main(["pack", str(library)]) == 0
    capsys.readouterr()
    with options(cache_dir=tmp_path / "there"):
        assert main(["unpack", str(library)]) == 1
    out = capsys.readouterr().out
    assert f"  jaxlib: 0.1 there, {environment()['jaxlib']} here\n" in out


def test_no_cache_on_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with options(cache_dir=None):
        assert main(["pack", str(tmp_path / "library.zip")]) == 2
    assert "name one with --dir" in capsys.readouterr().err


def test_a_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "library.zip").write_bytes(b"?")
    assert main(["unpack", str(tmp_path / "library.zip"), "--dir", str(tmp_path / "there")]) == 2
    assert "is no library that can be used" in capsys.readouterr().err
