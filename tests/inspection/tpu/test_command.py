"""`lazytpu-show cost`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lazytpu.inspection.show import main
from lazytpu.inspection.tpu import compiling
from lazytpu.runtime.errors import CompileError
from lazytpu.runtime.tpu.topology import Topology
from lazytpu.runtime.tpu.tpu_compiler import TpuProgram
from tests.inspection.samples import BEFORE
from tests.inspection.tpu.recorded import FOLDER, MEMORY, proto, text


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the compiler's arguments; it returns the recorded step."""
    asked: list[tuple[str, str, dict[str, Any]]] = []

    def compile_for_tpu(stablehlo: str, topology: str, **rest: Any) -> TpuProgram:
        asked.append((stablehlo, topology, rest))
        return TpuProgram(Topology.parse(topology), proto(text("step.hlo")), MEMORY, text("step.buffers"), 1.0)

    monkeypatch.setattr(compiling, "compile_for_tpu", compile_for_tpu)
    return asked


def test_stablehlo_is_compiled_as_it_is(compiled: Any, capsys: pytest.CaptureFixture[str]):
    assert main(["cost", str(FOLDER / "step.mlir"), "--topology", "v5p:2x2x1", "--option", "xla_a=true"]) == 0
    ((stablehlo, topology, options),) = compiled
    assert (stablehlo, topology) == (text("step.mlir"), "v5p:2x2x1")
    assert options == {"options": {"xla_a": True}, "name": "step"}
    printed = capsys.readouterr().out
    assert "step on v5p:2x2x1, 1 device" in printed and "train.py:10" in printed


def test_options_are_bools_numbers_and_words(compiled: Any):
    assert main(["cost", str(FOLDER / "step.mlir"), "--option", "a=3", "--option", "b=c", "--option", "c=False"]) == 0
    assert compiled[0][2]["options"] == {"a": 3, "b": "c", "c": False}


def test_the_dialect_goes_through_the_tpus_pipeline(compiled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    targets: list[Any] = []
    run = compiling.run_pipeline

    def watched(module: Any, *, passes: Any, verify: bool) -> Any:
        targets.append(passes)
        return run(module, passes=passes, verify=verify)

    monkeypatch.setattr(compiling, "run_pipeline", watched)
    dumped = tmp_path / "003-train_step.lazytpu.mlir"
    dumped.write_text(BEFORE)
    assert main(["cost", str(dumped)]) == 0
    assert [str(target) for target in targets] == ["v6e"]
    stablehlo, topology, options = compiled[0]
    assert topology == "v6e:2x2" and options["name"] == "train_step"
    assert "stablehlo." in stablehlo and 'loc("train.py"' in stablehlo


def test_figures_for_programs(compiled: Any, capsys: pytest.CaptureFixture[str]):
    assert main(["cost", str(FOLDER / "step.mlir"), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["schema"] == 2 and figures["programs"][0]["name"] == "step"


@pytest.mark.parametrize(
    ("content", "topology", "message"),
    [
        ("module {}", "v6e:2", "is no TPU topology"),
        ('%0 = "lazytpu.add', "v6e:2x2", "lazytpu-show: "),
        ("module {}", "v6e:2x2", "no function named main"),
    ],
)
def test_invalid_arguments_are_reported(
    compiled: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, topology: str, message: str
):
    (tmp_path / "a.mlir").write_text(content)
    assert main(["cost", str(tmp_path / "a.mlir"), "--topology", topology]) == 2
    assert message in capsys.readouterr().err


def test_errors_of_the_compiler_are_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def refuse(*args: Any, **rest: Any) -> TpuProgram:
        raise CompileError("step", "RESOURCE_EXHAUSTED: of memory")

    monkeypatch.setattr(compiling, "compile_for_tpu", refuse)
    assert main(["cost", str(FOLDER / "step.mlir")]) == 2
    assert "XLA could not compile step: RESOURCE_EXHAUSTED" in capsys.readouterr().err
