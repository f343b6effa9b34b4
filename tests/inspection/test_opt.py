"""lazytpu-opt, in process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lazytpu.inspection import opt
from lazytpu.ir.text import parse_module, print_module
from lazytpu.options import options
from lazytpu.passes import registry, unregister
from lazytpu.passes.pipeline import run_pipeline
from tests.inspection.samples import BEFORE


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "before.mlir"
    path.write_text(BEFORE)
    return str(path)


def test_no_passes_print_the_module_with_its_lines(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([file]) == 0
    assert capsys.readouterr().out == print_module(parse_module(BEFORE))


def test_passes_in_order(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["-p", "canonicalize,constant-folding{limit=4},dce", file]) == 0
    out = capsys.readouterr().out
    assert "lazytpu.transpose" not in out
    assert "rhs_contract = [1] precision = highest : (tensor<8x4xf32>, tensor<16x4xf32>)" in out
    assert 'loc("train.py":41:0)' in out


def test_default_is_the_pipeline_of_a_cut(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["-p", "default", file]) == 0
    expected = parse_module(BEFORE)
    run_pipeline(expected, verify=True)
    assert capsys.readouterr().out == print_module(expected)


def test_output_is_input_again(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    after = tmp_path / "after.mlir"
    assert opt.main(["-p", "default", file, "-o", str(after)]) == 0
    assert opt.main(["-p", "default", str(after)]) == 0
    assert capsys.readouterr().out == after.read_text()


def test_stablehlo(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["-p", "default", "-t", "stablehlo", file]) == 0
    out = capsys.readouterr().out
    assert "stablehlo.dot_general %arg1, %w, contracting_dims = [1] x [1]" in out
    assert "tf.aliasing_output = 1" in out


def test_time_of_passes(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["-p", "cse,dce", "--time-passes", file]) == 0
    assert "Pass cse took" in capsys.readouterr().out


def test_the_generic_form_agrees_with_xdsl(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["--print-op-generic", file]) == 0
    assert '"lazytpu.transpose"(%w)' in capsys.readouterr().out


def test_unknown_pass_lists_the_known_ones(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["-p", "fuse", file]) == 1
    err = capsys.readouterr().err
    assert err.startswith("lazytpu-opt: there is no pass named 'fuse'; the passes are canonicalize, ")
    assert "Traceback" not in err


def test_text_that_does_not_parse_shows_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.mlir"
    path.write_text(BEFORE.replace("lazytpu.sub", "lazytpu.subtract"))
    assert opt.main([str(path)]) == 1
    err = capsys.readouterr().err
    assert "lazytpu.subtract" in err
    assert "broken.mlir" in err


def test_invalid_module_shows_the_op(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "invalid.mlir"
    path.write_text(BEFORE.replace("rhs_contract = [0]", "rhs_contract = [1]"))
    assert opt.main(["-p", "cse", str(path)]) == 1
    err = capsys.readouterr().err
    assert "contracted dims" in err
    assert "lazytpu.dot_general" in err


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main([str(tmp_path / "nothing.mlir")]) == 1
    assert "nothing.mlir" in capsys.readouterr().err


def test_help_names_the_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        opt.main(["--help"])
    assert done.value.code == 0
    out = capsys.readouterr().out
    assert "usage: lazytpu-opt" in out
    assert "mark-donation" in "".join(out.split())  # argparse breaks lines at hyphens


MINE = '''
from dataclasses import dataclass
from xdsl.passes import ModulePass
from lazytpu.ir.unary import ExpOp
from lazytpu.passes import register

@register("mine", phase="final", targets=["v6e"])
@dataclass(frozen=True)
class Mine(ModulePass):
    """Says nothing. Does less."""

    shown_as: str = "x"
    limits: tuple[int, ...] = ()

    def apply(self, ctx, op):
        if self.shown_as == "broken":
            raise KeyError("limits")
'''


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[str]:
    """A file that registers a pass."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    yield str(path)
    if "mine" in registry.passes():
        unregister("mine")


def test_a_pass_of_a_file_with_options(file: str, mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["--load", mine, "-p", "mine{shown-as=y limits=1,2},cse", "--time-passes", file]) == 0
    assert "Pass mine took" in capsys.readouterr().out


def test_the_pipeline_of_a_target(file: str, mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["--load", mine, "-p", "v6e", "--time-passes", file]) == 0
    assert "Pass mine took" in capsys.readouterr().out
    assert opt.main(["-p", "default", "--time-passes", file]) == 0
    assert "Pass mine took" not in capsys.readouterr().out
    with options(target="v6e"):
        assert opt.main(["-p", "default", "--time-passes", file]) == 0
    assert "Pass mine took" in capsys.readouterr().out


def test_a_pass_that_fails_is_named(file: str, mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["--load", mine, "-p", "mine{shown-as=broken}", file]) == 1
    assert "pass 'mine' failed with KeyError: 'limits'" in capsys.readouterr().err


def test_the_list_of_passes(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["--load", mine, "--list-passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "constant-folding{limit=256}" in lines
    assert lines[lines.index("cse") + 1] == "    compute equal expressions once"
    at = next(i for i, line in enumerate(lines) if line.startswith("final: "))
    shown = lines.index("    mine{shown-as=x limits=()}  for v6e")
    assert at < shown < lines.index("mark-donation")
    assert lines[shown + 1] == "        Says nothing"


@pytest.mark.parametrize(
    ("text", "message"), [("1 / 0", "ZeroDivisionError"), ("x = 1", "registers no pass; register one by")]
)
def test_unloadable_sources_raise(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.py"
    path.write_text(text)
    assert opt.main(["--load", str(path), "--list-passes"]) == 1
    err = capsys.readouterr().err
    assert message in err and str(path) in err and "Traceback" not in err


@pytest.mark.parametrize("source", ["no_such_module_here", "no/such/file.py"])
def test_missing_sources(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert opt.main(["--load", source, "--list-passes"]) == 1
    assert f"cannot load passes from {source}" in capsys.readouterr().err
