"""lazytpu-show."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazytpu.inspection import show
from lazytpu.ir.text import parse_module
from tests.inspection.samples import BEFORE, STABLEHLO


@pytest.fixture
def dumped(tmp_path: Path) -> Path:
    (tmp_path / "001-step.lazytpu.mlir").write_text(BEFORE)
    (tmp_path / "001-step.stablehlo.mlir").write_text(STABLEHLO)
    return tmp_path


def test_dump_prints_a_file_as_it_is(dumped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main(["dump", str(dumped / "001-step.lazytpu.mlir")]) == 0
    out = capsys.readouterr().out
    assert out.rstrip() == BEFORE.rstrip()
    parse_module(out)


def test_dump_prints_a_folder_in_order(dumped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main(["dump", str(dumped)]) == 0
    out = capsys.readouterr().out
    assert out.index("// " + str(dumped / "001-step.lazytpu.mlir")) == 0
    assert "// " + str(dumped / "001-step.stablehlo.mlir") in out


def test_stats(dumped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main(["stats", str(dumped / "001-step.stablehlo.mlir")]) == 0
    out = capsys.readouterr().out
    assert "arguments  2 (320 bytes)" in out
    assert "overwritten by results  1 (256 bytes)" in out
    assert "stablehlo.complex" in out


def test_diff_returns_1_when_modules_differ(dumped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = dumped / "001-step.lazytpu.mlir"
    assert show.main(["diff", str(first), str(first)]) == 0
    assert capsys.readouterr().out == ""
    second = dumped / "changed.mlir"
    second.write_text(BEFORE.replace("lazytpu.sub", "lazytpu.add"))
    assert show.main(["diff", str(first), str(second)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "-     %3 = lazytpu.sub %w, %2 : tensor<16x4xf32>" in lines
    assert "+     %3 = lazytpu.add %w, %2 : tensor<16x4xf32>" in lines


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main(["dump", str(tmp_path / "nothing.mlir")]) == 2
    assert "nothing.mlir" in capsys.readouterr().err


def test_folder_without_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show.main(["stats", str(tmp_path)]) == 2
    assert f"LAZYTPU_DUMP={tmp_path}" in capsys.readouterr().err


def test_no_command_prints_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        show.main([])
    assert "dump|stats|diff" in capsys.readouterr().err
