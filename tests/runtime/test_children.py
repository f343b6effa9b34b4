"""The environment of the Python processes that lazytpu starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lazytpu.runtime.children import search_path


def test_children_find_the_same_modules_even_in_a_deleted_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", ["", "/modules"])
    monkeypatch.chdir(tmp_path)
    assert search_path() == f"{tmp_path}{os.pathsep}/modules"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert search_path() == "/modules"
