"""The report as a whole: sums, JSON, text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lazytpu.inspection.tpu.hlo import ProgramLine
from lazytpu.inspection.tpu.program import ProgramReport, examine
from lazytpu.inspection.tpu.render import as_text
from lazytpu.inspection.tpu.report import TpuReport
from lazytpu.inspection.units import size, us
from tests.inspection.tpu.recorded import proto, report, text

ROOT = Path(__file__).resolve().parents[3]
STEP = TpuReport("v6e:2x2", (report("step"),))
EXCHANGE = TpuReport("v6e:2x2", (report("collectives", devices=4),))


def test_utilisation_is_of_the_whole_run():
    (program,) = STEP.programs
    flops = 2 * (256 * 1000 * 640 + 2 * 256 * 640 * 100)
    assert program.flops == flops
    assert program.utilisation == pytest.approx(flops / program.seconds / 918e12)
    assert program.roofline == (pytest.approx(flops / 918e12), pytest.approx(program.hbm_bytes / 1638e9))


def test_the_lines_share_the_time():
    (program,) = STEP.programs
    lines = {str(line): sum(cost.seconds for cost in costs) for line, costs in program.by_line.items()}
    assert list(lines) == ["train.py:10", "train.py:12", "None", "train.py:12 (backward)"]  # None: transfers
    assert sum(lines.values()) == pytest.approx(program.seconds)


KERNEL = """HloModule m

ENTRY %e (p: f32[8,128]) -> f32[8,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  %n = f32[8,128]{1,0:T(8,128)} negate(%p), backend_config={"window_config":{"estimated_cycles":"8000"}}
  ROOT %k = f32[8,128]{1,0:T(8,128)} custom-call(%n), custom_call_target="TARGET"FRONTEND, backend_config=CONFIG
}
"""
MODULE = """module @m {
  func.func public @main(%p: tensor<8x128xf32>) -> tensor<8x128xf32> {
    return %p : tensor<8x128xf32>
  }
}
"""


def of_kernel(config: str, target: str = "tpu_custom_call", frontend: str = "") -> ProgramReport:
    kernel = KERNEL.replace("CONFIG", config).replace("TARGET", target).replace("FRONTEND", frontend)
    return examine(replace(STEP.programs[0].program, proto=proto(kernel), buffers=""), MODULE, name="step")


ESTIMATE = '{"custom_call_config":{"cost_estimate":{"flops":"%d","transcendentals":"%d","bytes_accessed":"%d"}}}'


@pytest.mark.parametrize(
    ("estimate", "bound", "seconds"),
    [
        ((918 * 10**6, 0, 0), "matrix unit", 1e-6),
        ((0, 1024 * 1750 * 2, 0), "vector unit", 2e-6),
        ((0, 0, 1638 * 3000), "HBM", 3e-6),
        ((1, 1, 1), "latency", 600 / 1.75e9),
    ],
)
def test_kernels_take_the_time_of_their_estimate(estimate: tuple[int, int, int], bound: str, seconds: float):
    program = of_kernel(ESTIMATE % estimate)
    (cost,) = program.kernels
    assert (cost.op.name, cost.bound, cost.seconds) == ("k", bound, pytest.approx(seconds))
    assert program.complete and program.flops == estimate[0]
    assert "by their own cost estimates" in as_text((program,))
    assert not STEP.programs[0].kernels


def test_products_of_a_kernel_may_take_several_passes():
    frontend = ', frontend_attributes={kernel_metadata={\n"matrix_passes":"6"\n}}'
    (cost,) = of_kernel(ESTIMATE % (918 * 10**6, 0, 0), frontend=frontend).kernels
    assert (cost.seconds, cost.flops) == (pytest.approx(6e-6), 918 * 10**6)


@pytest.mark.parametrize("target", ["tpu_custom_call", "TopK9"])
def test_ops_without_an_estimate_have_no_time(target: str):
    """They count in no sum and no ratio."""
    program = of_kernel("{}", target)
    shown = as_text((program,))
    assert [cost.op.name for cost in program.unknown] == ["k"] and not program.complete
    assert program.seconds == pytest.approx(8000 * 0.15 / 1.75e9)
    assert f"1 calls of {target} say not how long" in shown and "at least 0.7 us" in shown and "%" not in shown
    figures = TpuReport("v6e:2x2", (program,)).as_dict()
    (op,) = (op for op in figures["programs"][0]["ops"] if op["name"] == "k")
    assert op["seconds"] is None and figures["complete"] is False
    assert figures["programs"][0]["unknown_calls"] == ["k"]


def test_an_op_is_about_its_product():
    (program,) = STEP.programs
    fusion = program.hlo.entry.by_name["convolution_subtract_fusion"]
    assert program.line(fusion) == ProgramLine("train.py", 12, backward=True)
    assert program.lines(fusion) == [ProgramLine("train.py", 12, backward=True), ProgramLine("train.py", 14)]


def test_a_collective_beside_the_core_has_its_line():
    """The compiler drops the line; it is found by kind and size."""
    program = report("sparsecore", text("collectives.mlir"), devices=4)
    lines = {cost.collective: str(program.line(cost.op)) for cost in program.collectives}
    assert lines == {"all-reduce": "train.py:4", "collective-permute": "train.py:5", "all-gather": "train.py:6"}


def test_json_holds_everything():
    figures = json.loads(json.dumps(EXCHANGE.as_dict()))
    (program,) = figures["programs"]
    assert (figures["schema"], figures["topology"], figures["seconds"]) == (2, "v6e:2x2", program["seconds"])
    assert sum(op["seconds"] for op in program["ops"]) == pytest.approx(program["seconds"])
    reduced = next(op for op in program["ops"] if op["collective"] == "all-reduce")
    assert reduced["payload_bytes"] == 1024 * 512 * 4 and reduced["bound"] == "links"
    assert reduced["line"] == {"file": "train.py", "line": 4, "backward": False, "module": ""}
    waited = [op["waited_seconds"] for op in program["ops"] if op["collective"]]
    assert program["exposed_seconds"] == pytest.approx(sum(waited))
    names = {op["name"] for op in program["ops"]} | {"copy-done", "copy-done.1", "collective-permute-done"}
    assert {span["op"] for span in program["timeline"]} <= names
    assert {span["lane"] for span in program["timeline"]} == {"core", "dma", "links"}
    assert program["memory"]["fits"] and program["memory"]["capacity"] == 32 * 10**9


def test_every_field_is_documented():
    page = (ROOT / "docs/tpu-report.md").read_text()

    def names(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value).union(*map(names, value.values()))
        return set().union(*map(names, value)) if isinstance(value, list) else set()

    missing = {name for name in names(STEP.as_dict()) | names(EXCHANGE.as_dict()) if f"`{name}`" not in page}
    assert not missing


def test_the_text_shows_lines_and_gains():
    shown = as_text(STEP.programs)
    assert "step on v6e:2x2, 1 device" in shown
    assert "train.py:10" in shown and "train.py:12 (backward)" in shown
    assert "1 float32 products take 6 passes" in shown
    assert max(map(len, shown.splitlines())) <= 120
    assert str(STEP) == shown
    assert repr(STEP) == "<TpuReport for v6e:2x2: 7 us estimated, 1 program>"


def test_people_read_collectives():
    shown = as_text(EXCHANGE.programs)
    assert "waiting for chips" in shown and "hidden" in shown and "all-reduce" in shown


def test_several_programs_are_one_step():
    combined = TpuReport("v6e:2x2", (*STEP.programs, *EXCHANGE.programs))
    assert combined.seconds == pytest.approx(STEP.seconds + EXCHANGE.seconds)
    assert as_text(combined.programs).startswith("2 programs, ")
    assert len(combined.advice) == len(STEP.advice) + len(EXCHANGE.advice)


def test_figures():
    assert [us(1e-6), us(2.5e-2)] == ["1.0 us", "25.0 ms"]
    assert [size(n) for n in (512, 20_000, 2_340_000, 45e9)] == ["512 B", "20.0 kB", "2,340 kB", "45.0 GB"]
