"""The place of the cache, and folders that it does not trust."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from lazytpu.options import options
from lazytpu.runtime.cache import folder
from lazytpu.runtime.cache.store import CacheWarning, Store, store

KEY = "a" * 64


def test_default_folder_is_in_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert folder.located(folder.DEFAULT) == tmp_path / ".cache/lazytpu"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert folder.located(folder.DEFAULT) == tmp_path / ".cache/lazytpu"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folder.located(folder.DEFAULT) == tmp_path / "xdg/lazytpu"
    assert folder.located(Path("~/mine")) == tmp_path / "mine"


def test_no_disk_cache_without_a_home(monkeypatch: pytest.MonkeyPatch):
    def no_home(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with options(cache_dir="~/somewhere"), pytest.warns(CacheWarning, match=r"in memory only: .*home directory"):
        assert store().root is None


@pytest.mark.parametrize("given", ["", "off", None])
def test_cache_can_be_off(given: str | None):
    with options(cache_dir=given):
        assert store().root is None and not store().writable()


def kept(cache: Store) -> bool:
    """Whether the store keeps an entry."""
    return cache.put("program", KEY, b"x", {}) and cache.get("program", KEY) is not None


def test_new_folder_is_private_under_any_umask(tmp_path: Path):
    before = os.umask(0)
    try:
        assert kept(Store(tmp_path / "parent/cache"))
    finally:
        os.umask(before)
    for path in (tmp_path / "parent/cache").rglob("*"):
        assert not path.stat().st_mode & 0o077 or path.name == "CACHEDIR.TAG"
    assert (tmp_path / "parent/cache").stat().st_mode & 0o777 == 0o700


def test_readable_folder_is_closed(tmp_path: Path):
    tmp_path.chmod(0o755)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kept(Store(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_writable_folder_is_closed_with_a_warning(tmp_path: Path, mode: int):
    assert kept(Store(tmp_path / "cache"))
    (tmp_path / "cache").chmod(mode)
    message = rf"could be written by others \(mode {mode:04o}\); it is private now"
    with pytest.warns(CacheWarning, match=message) as warned:
        assert kept(Store(tmp_path / "cache"))
    assert len(warned) == 1
    assert (tmp_path / "cache").stat().st_mode & 0o7777 == 0o700


def test_folder_with_other_files_is_left_alone(tmp_path: Path):
    """LAZYTPU_CACHE_DIR=/tmp must not close /tmp to all other users."""
    (tmp_path / "letter.txt").write_text("dear")
    tmp_path.chmod(0o777)
    cache = Store(tmp_path)
    with pytest.warns(CacheWarning, match=r"more than the cache is in it \(letter.txt\): name a folder") as warned:
        assert not kept(cache)
    assert len(warned) == 1
    assert tmp_path.stat().st_mode & 0o777 == 0o777
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert kept(Store(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    cache = Store(tmp_path / "cache")
    with pytest.warns(CacheWarning, match=rf"belongs to user {os.getuid()}, and programs are only run") as warned:
        assert cache.get("program", KEY) is None and not cache.put("program", KEY, b"y", {})
    assert len(warned) == 1
    assert cache.entries() == []


def test_file_in_its_place_is_refused(tmp_path: Path):
    (tmp_path / "cache").write_text("")
    with pytest.warns(CacheWarning, match="cached in memory only") as warned:
        assert not kept(Store(tmp_path / "cache"))
    assert len(warned) == 1


def test_removed_folder_is_created_again(tmp_path: Path):
    import shutil

    cache = Store(tmp_path / "cache")
    assert kept(cache)
    shutil.rmtree(tmp_path / "cache")
    assert cache.get("program", KEY) is None
    assert kept(cache)
