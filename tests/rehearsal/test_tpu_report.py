"""`lazytpu.tpu_report`: from PyTorch code to the TPU's compiler and back to its lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.inspection.tpu import compiling
from lazytpu.inspection.tpu.report import TpuReport
from lazytpu.runtime.tpu.tpu_compiler import TpuProgram


class Training:
    """Two layers, one of them slightly too wide, and a value that is kept needlessly."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(128, 129), nn.Linear(129, 128)).to("tpu")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.x = torch.randn(256, 128).to("tpu")
        self.kept: torch.Tensor | None = None

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        self.kept = self.model(self.x).sin()  # KEPT
        loss = self.kept.square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


LINE = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# KEPT"))


@pytest.fixture(scope="module")
def report() -> TpuReport:
    return lazytpu.tpu_report(Training().step, topology="v6e:4x4")


def test_stages_are_printed_on_request(capsys: pytest.CaptureFixture[str]):
    def step() -> torch.Tensor:
        return torch.ones(128, 128, device="tpu") @ torch.ones(128, 128, device="tpu")

    lazytpu.tpu_report(step, topology="v6e", progress=True)
    *calls, passes, compiling = capsys.readouterr().err.splitlines()
    assert calls[0] == "lazytpu: recording step, call 1" and len(calls) == 2
    assert passes == "lazytpu: program 1 of 1 (step, 3 ops): passes"
    assert compiling == "lazytpu: program 1 of 1 (step, 3 ops): compiling for v6e:2x2"
    lazytpu.tpu_report(step)
    assert capsys.readouterr().err == ""


def test_report_is_of_the_step_on_that_topology(report: TpuReport):
    (program,) = report.programs
    assert (program.name, str(program.program.topology), program.devices) == ("step", "v6e:4x4", 1)
    # Forward and backward of the second layer, and of the first one without the gradient of its input.
    assert program.flops == 2 * 256 * 128 * 129 * 5
    assert program.memory.fits and report.seconds > 0


def test_products_are_reported_with_the_users_lines(report: TpuReport):
    (program,) = report.programs
    about = [program.line(cost.op) for cost in program.costs if cost.work.matrix]
    assert {(line.line, line.backward) for line in about if line} == {(LINE, False), (LINE, True)}
    assert all(line and line.file.endswith("tests/rehearsal/test_tpu_report.py") for line in about)


def test_advice_names_the_users_code(report: TpuReport):
    advice = {item.code: item for item in report.advice}
    of_the_code = {"past-a-tile", "float32-products", "held-value"}
    assert set(advice) == of_the_code | {"host-bound", "layout-copies", "small-ops"}  # it takes some 7 µs
    assert "a size of 129, 1 past" in advice["past-a-tile"].text
    assert "f32[256,128] is held" in advice["held-value"].text
    line = advice["held-value"].line
    assert line is not None and line.line == LINE
    # No held gradients: in a loop the next call's zero_grad() frees them before the program is launched.


def test_updates_are_in_place(report: TpuReport):
    """The results reuse the memory of four parameters and their momenta."""
    memory = report.programs[0].memory.total
    assert memory.aliased >= 2 * 4 * (2 * 128 * 129)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, report: TpuReport) -> list[str]:
    """Record the StableHLO that a test gives to the TPU's compiler, and return an earlier program in its place."""
    texts: list[str] = []

    def compile_for_tpu(stablehlo: str, topology: str, **_: Any) -> TpuProgram:
        texts.append(stablehlo)
        return report.programs[0].program

    monkeypatch.setattr(compiling, "compile_for_tpu", compile_for_tpu)
    return texts


def test_arguments_of_the_step_are_passed_on(compiled: list[str]):
    x = torch.ones(3, 5, device="tpu")
    assert lazytpu.tpu_report(lambda a, *, b: a @ b, x, topology="v5e:2x2", b=x.t()).topology == "v5e:2x2"
    assert "tensor<3x5xf32>" in compiled[0] and "test_tpu_report.py" in compiled[0]
    (x + 1).sum().item()
    lazytpu.tpu_report(lazytpu.graphs()[-1])
    assert "stablehlo.reduce" in compiled[1]


def test_templates_are_lowered_for_the_tpu(compiled: list[str]):
    """Not by LAPACK, as for the platform of this process."""
    lazytpu.tpu_report(torch.linalg.cholesky, torch.eye(3, device="tpu"))
    assert "lapack" not in compiled[0] and "cholesky" in compiled[0]


def test_argument_is_a_function_or_a_program():
    with pytest.raises(TypeError, match=r"takes a function, or a program of lazytpu\.graphs\(\), not 3"):
        lazytpu.tpu_report(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="is no TPU topology"):
        lazytpu.tpu_report(print, topology="v6")
    with pytest.raises(ValueError, match="leaves nothing on the device"):
        lazytpu.tpu_report(lambda: None)


def test_compiler_runs_once(report: TpuReport):
    """The cache serves the same StableHLO for the same chips."""
    (again,) = lazytpu.tpu_report(Training().step).programs
    assert again.program.cached and again.program.proto == report.programs[0].program.proto
