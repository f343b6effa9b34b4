"""The output at each level of LAZYTPU_DEBUG."""

from __future__ import annotations

import re

import pytest

from lazytpu.inspection import debug
from lazytpu.ir.text import parse_module
from lazytpu.options import options
from lazytpu.passes.pipeline import run_pipeline
from tests.inspection.samples import BEFORE


def printed(level: int, capsys: pytest.CaptureFixture[str]) -> str:
    with options(debug=level):
        run_pipeline(parse_module(BEFORE), passes="canonicalize,dce", verify=False, observer=debug.observer("step"))
        debug.compiled(3, "step", 1234, 56.7)
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_level_0_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(0, capsys) == ""


def test_level_1_reports_compilations(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(1, capsys) == "lazytpu: compiled program 3 step: 1,234 recorded ops, 57 ms in XLA\n"


def test_level_2_times_passes(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(2, capsys).splitlines()
    assert len(lines) == 4
    assert lines[0] == "lazytpu: program step: 6 ops imported"
    assert re.fullmatch(r"lazytpu:   canonicalize +[\d.]+ ms +5 ops \(-1\)", lines[1])
    assert re.fullmatch(r"lazytpu:   dce +[\d.]+ ms +5 ops \(\+0\)", lines[2])


@pytest.mark.parametrize(("level", "modules"), [(2, 0), (3, 2), (4, 3)])
def test_levels_3_and_4_print_the_ir(level: int, modules: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(level, capsys)
    assert text.count("func.func @main") == modules
    # Long lines are not wrapped, and the output can be parsed again.
    for start in [match.start() for match in re.finditer("^builtin.module", text, re.MULTILINE)]:
        parse_module(text[start : text.index("\n}", start) + 2])
