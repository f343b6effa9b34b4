"""Programs as files."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest

from lazytpu.inspection import dumps


def test_file_is_named_by_number_name_and_stage(tmp_path: Path) -> None:
    path = dumps.write(tmp_path / "new" / "folder", 7, "train_step", "lazytpu.mlir", "text\n")
    assert path == tmp_path / "new" / "folder" / "007-train_step.lazytpu.mlir"
    assert path.read_text() == "text\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("step", "step"), ("a b/../c", "a_b_.._c"), ("<module>", "module"), ("", "program"), ("x" * 200, "x" * 80)],
)
def test_names_are_made_fit_for_files(name: str, expected: str) -> None:
    assert dumps.file_name(name) == expected


def test_a_second_write_replaces_the_first_and_leaves_nothing_beside(tmp_path: Path) -> None:
    for text in ("first", "second"):
        dumps.write(tmp_path, 1, "step", "stablehlo.mlir", text)
    assert [path.name for path in tmp_path.iterdir()] == ["001-step.stablehlo.mlir"]
    assert (tmp_path / "001-step.stablehlo.mlir").read_text() == "second"


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    texts = {letter * 200_000 for letter in "ab"}
    path = dumps.write(tmp_path, 1, "step", "lazytpu.mlir", "a" * 200_000)
    done = threading.Event()

    def write() -> None:
        for i in range(50):
            dumps.write(tmp_path, 1, "step", "lazytpu.mlir", "ab"[i % 2] * 200_000)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert path.read_text() in texts
    writer.join()


def test_error_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(OSError, match=rf"{re.escape(os.fspath(tmp_path))}.*LAZYTPU_DUMP"):
        dumps.write(tmp_path / "file", 1, "step", "lazytpu.mlir", "text")
