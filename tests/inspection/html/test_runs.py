"""The index of all programs of a run, and the comparison of two runs."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest

from lazytpu.inspection.html.runs import paired, programs
from lazytpu.inspection.show import main
from tests.inspection.step.samples import MODULES, STEP

CHANGED = STEP.replace("func.return", "%7 = lazytpu.sin %6 : tensor<256x128xf32>\nfunc.return").replace(
    "lazytpu.exp", "lazytpu.tanh"
)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """The dumps of two runs: the second one's step is changed, and it compiles one more."""
    first, second = tmp_path / "first", tmp_path / "second"
    dumped = {first: {"000-init": MODULES, "001-step": STEP}, second: {"000-step": CHANGED, "001-step": STEP}}
    for folder, texts in dumped.items():
        folder.mkdir()
        for name, text in texts.items():
            (folder / f"{name}.imported.mlir").write_text(text)
            (folder / f"{name}.why.txt").write_text(f"because of <{name}>\n      - old\n")
    return first, second


def test_all_programs_are_listed_with_their_reasons(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(runs[0]), "--model"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if "because of" in line] == [["000-init", "6"], ["001-step", "7"]]


def test_programs_are_compared_by_function_and_order(runs: tuple[Path, Path]) -> None:
    first, second = (programs(folder, "v6e", by_model=True) for folder in runs)
    pairs = paired(first, second)
    names = [(pair.first and pair.first.name, pair.second and pair.second.name) for pair in pairs]
    assert names == [("000-init", None), ("001-step", "000-step"), (None, "001-step")]
    changes = [pair.change for pair in pairs]
    assert changes[0] == "only in the first run" and changes[2] == "only in the second run"
    assert " lines differ, " in changes[1]
    assert {pair.change for pair in paired(first, first)} == {"the same"}


def test_index_leads_to_a_page_for_each_program(runs: tuple[Path, Path], tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    assert main(["runs", *map(str, runs), "-o", str(pages), "--model"]) == 0
    index = (pages / "index.html").read_text()
    for name in ("first-000-init", "first-001-step", "second-000-step", "second-001-step"):
        assert f'href="{name}.html"' in index and "Where the time goes" in (pages / f"{name}.html").read_text()
    assert "<000-step>" not in index and "because of <000-step>" in unescape(index)


def test_folder_without_programs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path)]) == 2
    assert "LAZYTPU_DUMP" in capsys.readouterr().err
