"""The report as a whole: sums, JSON, text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lazytpu.inspect.tpu.hlo import Line
from lazytpu.inspect.tpu.render import as_text, size, us
from lazytpu.inspect.tpu.report import TpuReport, examine
from tests.inspect.tpu.recorded import report, text

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


def test_kernels_are_told_apart():
    made = text("step.hlo").replace(
        "fusion(%convolution_tanh_fusion, %copy-done.1), kind=kOutput, calls=%fused_computation.2",
        'custom-call(%convolution_tanh_fusion, %copy-done.1), custom_call_target="tpu_custom_call"',
    )
    program = examine(replace(STEP.programs[0].program, hlo=made), text("step.mlir"), name="step")
    assert [cost.op.name for cost in program.kernels] == ["convolution_reduce_fusion"]
    assert "1 of unknown time" in as_text(TpuReport("v6e:2x2", (program,)))
    assert not STEP.programs[0].kernels


def test_an_op_is_about_its_product():
    (program,) = STEP.programs
    fusion = program.hlo.entry.by_name["convolution_subtract_fusion"]
    assert program.line(fusion) == Line("train.py", 12, backward=True)
    assert program.lines(fusion) == [Line("train.py", 12, backward=True), Line("train.py", 14)]


def test_a_collective_beside_the_core_has_its_line():
    """The compiler drops it: it is found by kind and size."""
    program = report("sparsecore", text("collectives.mlir"), devices=4)
    lines = {cost.collective: str(program.line(cost.op)) for cost in program.collectives}
    assert lines == {"all-reduce": "train.py:4", "collective-permute": "train.py:5", "all-gather": "train.py:6"}


def test_json_holds_everything():
    made = json.loads(json.dumps(EXCHANGE.as_dict()))
    (program,) = made["programs"]
    assert (made["schema"], made["topology"], made["seconds"]) == (1, "v6e:2x2", program["seconds"])
    assert sum(op["seconds"] for op in program["ops"]) == pytest.approx(program["seconds"])
    reduced = next(op for op in program["ops"] if op["collective"] == "all-reduce")
    assert reduced["payload_bytes"] == 1024 * 512 * 4 and reduced["bound"] == "links"
    assert reduced["line"] == {"file": "train.py", "line": 4, "backward": False}
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


def test_people_read_lines_and_gains():
    shown = as_text(STEP)
    assert "step on v6e:2x2, 1 device" in shown
    assert "train.py:10" in shown and "train.py:12 (backward)" in shown
    assert "1 float32 products take 6 passes" in shown
    assert max(map(len, shown.splitlines())) <= 120
    assert str(STEP) == shown
    assert repr(STEP) == "<TpuReport for v6e:2x2: 7 us estimated, 1 program>"


def test_people_read_collectives():
    shown = as_text(EXCHANGE)
    assert "waiting for chips" in shown and "hidden" in shown and "all-reduce" in shown


def test_several_programs_are_one_step():
    both = TpuReport("v6e:2x2", (*STEP.programs, *EXCHANGE.programs))
    assert both.seconds == pytest.approx(STEP.seconds + EXCHANGE.seconds)
    assert as_text(both).startswith("2 programs, ")
    assert len(both.advice) == len(STEP.advice) + len(EXCHANGE.advice)


def test_figures():
    assert [us(1e-6), us(2.5e-2)] == ["1.0 us", "25.0 ms"]
    assert [size(n) for n in (512, 20_000, 2_340_000, 45e9)] == ["512 B", "20.0 kB", "2,340 kB", "45.0 GB"]
