"""Advice: for each rule, a program to which it applies, and one to which it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lazytpu.inspection.tpu.advice import LANES, ONE_PASS, RULES, Advice, advise
from lazytpu.inspection.tpu.program import ProgramReport
from lazytpu.inspection.tpu.schedule import Cost, Schedule
from lazytpu.inspection.tpu.work import NOTHING
from tests.inspection.tpu.recorded import MEMORY, cost_of, report, text

ROOT = Path(__file__).resolve().parents[3]


def advice(stablehlo: str, code: str) -> list[Advice]:
    """Return the advice of a rule for a StableHLO module; times are taken from the recorded step's ops at the same
    lines."""
    assert code in RULES
    return [item for item in advise(report("step", stablehlo)) if item.code == code]


def dot(left: str, right: str, result: str, dims: str, line: int = 10) -> str:
    kinds = f"tensor<{left}>", f"tensor<{right}>", f"tensor<{result}>"
    return f"""
func.func public @main(%a: {kinds[0]}, %b: {kinds[1]}) -> {kinds[2]} {{
  %0 = stablehlo.dot_general %a, %b, {dims} : ({kinds[0]}, {kinds[1]}) -> {kinds[2]} loc("train.py":{line}:0)
  return %0 : {kinds[2]}
}}"""


SCORES = "batching_dims = [0] x [0], contracting_dims = [2] x [2]"
PLAIN = "contracting_dims = [1] x [0]"


@pytest.mark.parametrize("head", [64, 80])
def test_narrow_heads(head: int):
    (item,) = advice(dot(f"12x512x{head}xbf16", f"12x512x{head}xbf16", "12x512x512xbf16", SCORES), "narrow-heads")
    assert f"heads of {head}: they fill {head} of {LANES} lanes" in item.text and "256 rows" in item.text
    assert str(item.line) == "train.py:10"


@pytest.mark.parametrize(
    "module",
    [
        dot("12x512x128xbf16", "12x512x128xbf16", "12x512x512xbf16", SCORES),  # heads of 128
        dot("512x64xbf16", "64x512xbf16", "512x512xbf16", PLAIN),  # a layer, no heads
    ],
)
def test_no_narrow_heads(module: str):
    assert not advice(module, "narrow-heads")


def test_past_a_tile():
    (item,) = advice(dot("256x1025xf32", "1025x640xf32", "256x640xf32", PLAIN), "past-a-tile")
    assert "a size of 1025, 1 past a multiple of 128: they are computed as 1152" in item.text
    assert item.fix == "use 1024, or all of 1152"


@pytest.mark.parametrize("size", [1024, 1000, 100, 50304])
def test_not_past_a_tile(size: int):
    assert not advice(dot(f"256x{size}xf32", f"{size}x640xf32", "256x640xf32", PLAIN), "past-a-tile")


def test_float32_products_report_their_cost():
    """The time belongs to the op that computes the product, found by its line and its operations."""
    (item,) = [item for item in advise(report("step")) if item.code == "float32-products"]
    assert item.text.startswith("1 float32 products take 6 passes")
    assert str(item.line) == "train.py:12"
    spent = cost_of(report("step").costs, "convolution_reduce_fusion").seconds
    assert item.seconds == pytest.approx(spent * ONE_PASS)


def test_products_of_bfloat16_take_one_pass():
    module = dot("256x1000xbf16", "1000x640xbf16", "256x640xbf16", f"{PLAIN}, precision = [HIGHEST, HIGHEST]")
    assert not advice(module, "float32-products")


RESULT = """
func.func public @main(%x: tensor<{size}xf32> {{lazytpu.name = "x"{alias}}})
    -> (tensor<{size}xf32>{name}) {{
  %0 = stablehlo.tanh %x : tensor<{size}xf32> loc("train.py":7:0)
  return %0 : tensor<{size}xf32>
}}"""


def test_a_value_that_python_holds():
    (item,) = advice(RESULT.format(size=1 << 20, alias="", name=""), "held-value")
    assert item.text.startswith("f32[1048576] is held by Python") and item.bytes == 4 << 20
    assert str(item.line) == "train.py:7" and item.seconds == pytest.approx((4 << 20) / 1638e9)


@pytest.mark.parametrize(
    "module",
    [
        RESULT.format(size=4, alias="", name=""),  # a loss
        RESULT.format(size=1 << 20, alias="", name=' {lazytpu.name = "weight"}'),
        RESULT.format(size=1 << 20, alias=", tf.aliasing_output = 0 : i32", name=""),  # overwritten in place
    ],
)
def test_a_result_that_has_to_be(module: str):
    assert not advice(module, "held-value")


def test_gradients_that_outlive_the_step():
    (item,) = advice(RESULT.format(size=1 << 20, alias="", name=' {lazytpu.name = "weight.grad"}'), "held-gradients")
    assert item.text.startswith("1 gradients are alive") and item.bytes == 4 << 20
    assert not advice(RESULT.format(size=1 << 20, alias="", name=' {lazytpu.name = "weight"}'), "held-gradients")


def test_an_update_that_is_not_in_place():
    (item,) = advice(RESULT.format(size=256, alias="", name=' {lazytpu.name = "x"}'), "not-donated")
    assert "of x first, cannot take the old value's memory" in item.text and item.bytes == 1024
    in_place = RESULT.format(size=256, alias=", tf.aliasing_output = 0 : i32", name=' {lazytpu.name = "x"}')
    assert not advice(in_place, "not-donated")


def test_collectives_that_are_waited_for():
    (item,) = [item for item in advise(report("collectives", devices=4)) if item.code == "exposed-collectives"]
    assert item.text == "the core waits for 2 collectives, longest for all-reduce of 2,097,152 bytes"
    assert str(item.line) == "train.py:4"
    assert item.seconds == pytest.approx(report("collectives", devices=4).exposed)
    assert not advice(text("step.mlir"), "exposed-collectives")


def test_a_program_that_does_not_fit():
    large = report("step", memory=replace(MEMORY, temporaries=40 * 10**9))
    (item,) = [item for item in advise(large) if item.code == "does-not-fit"]
    assert "a device has 32,000,000,000" in item.text and item.bytes > 8 * 10**9
    assert not advice(text("step.mlir"), "does-not-fit")


def test_the_largest_gain_comes_first():
    gains = [item.seconds or 0 for item in advise(report("step"))]
    assert gains == sorted(gains, reverse=True)


CONVOLUTION = """
func.func public @main(%x: tensor<8x32x32x{channels}xbf16>, %k: tensor<3x3x{channels}x{channels}xbf16>)
    -> tensor<8x32x32x{channels}xbf16> {{
  %0 = stablehlo.convolution(%x, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{pad = [[1, 1], [1, 1]]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : (tensor<8x32x32x{channels}xbf16>, tensor<3x3x{channels}x{channels}xbf16>) -> tensor<8x32x32x{channels}xbf16>
    loc("train.py":10:0)
  return %0 : tensor<8x32x32x{channels}xbf16>
}}"""


@pytest.mark.parametrize(
    ("module", "channels"),
    [
        (CONVOLUTION.format(channels=16), 16),
        (CONVOLUTION.format(channels=127), 127),
        (dot("512x32xbf16", "32x512xbf16", "512x512xbf16", PLAIN), 32),
    ],
)
def test_narrow_channels(module: str, channels: int):
    (item,) = advice(module, "narrow-channels")
    assert f"few channels (1 have {channels}), which fill as many of 128 lanes" in item.text
    spent = sum(c.seconds for c in report("step").by_line[item.line] if c.work.matrix and c.bound != "HBM")
    assert spent > 0 and item.seconds == pytest.approx(spent * (1 - channels / LANES))


@pytest.mark.parametrize(
    "module",
    [CONVOLUTION.format(channels=128), dot("12x512x64xbf16", "12x512x64xbf16", "12x512x512xbf16", SCORES)],
)
def test_no_narrow_channels(module: str):
    assert not advice(module, "narrow-channels")


def test_a_small_batch():
    (item,) = advice(dot("4x512xbf16", "512x512xbf16", "4x512xbf16", PLAIN), "small-batch")
    assert "1 products have 4 rows" in item.text
    spent = sum(c.seconds for c in report("step").by_line[item.line] if c.work.matrix and c.bound != "HBM")
    assert item.seconds == pytest.approx(spent * (1 - 4 / LANES))
    assert not advice(dot("128x512xbf16", "512x512xbf16", "128x512xbf16", PLAIN), "small-batch")


def with_costs(*rows: tuple[str, str, float]) -> ProgramReport:
    """Return the recorded step as if the ops with these names were bound by these units, and took these seconds."""
    recorded = report("step")
    ops = {op.name: op for op in recorded.hlo.entry.ops}
    costs = [Cost(ops[name], "compute", bound, NOTHING, seconds=seconds) for name, bound, seconds in rows]
    return replace(recorded, schedule=Schedule(sum(seconds for *_, seconds in rows), costs))


def found(program: ProgramReport) -> dict[str, float | None]:
    return {item.code: item.seconds for item in advise(program)}


def test_classes_of_ops_are_advised_by_their_time():
    names = [op.name for op in report("step").hlo.entry.ops if op.opcode == "fusion"]
    codes = found(with_costs((names[0], "latency", 3e-6), (names[1], "vector unit", 2e-6)))
    assert codes["small-ops"] == 3e-6 and codes["idle-matrix-unit"] == 2e-6
    assert list(codes)[:2] == ["small-ops", "idle-matrix-unit"], "the largest time comes first"
    small = (names[1], "latency", 2e-6), (names[2], "vector unit", 1e-6)
    rare = found(with_costs((names[0], "matrix unit", 1.0), *small))
    assert not rare.keys() & {"small-ops", "idle-matrix-unit"}


def test_values_between_ops_that_memory_bounds():
    recorded = report("step")
    pairs = [
        (op, user)
        for op in recorded.hlo.entry.ops
        for user, _ in recorded.hlo.entry.users.get(op.name, ())
        if op.opcode == user.opcode == "fusion"
    ]
    op, user = pairs[0]
    size = 2 * sum(array.hbm_bytes for array in op.results)
    codes = found(with_costs((op.name, "HBM", 1e-6), (user.name, "HBM", 1e-6)))
    gain = size / recorded.facts.device_hbm_bandwidth
    assert codes.get("memory-bound-chain") == (pytest.approx(gain) if gain > 0.01 * 2e-6 else None)
    assert "memory-bound-chain" not in found(with_costs((op.name, "HBM", 1e-6), (user.name, "vector unit", 1e-6)))


def test_padding_that_is_moved():
    costs = report("step").costs
    op = next(c.op.name for c in costs if any(array.hbm_bytes > 1.01 * array.bytes for array in c.op.results))
    codes = found(with_costs((op, "HBM", 1e-6)))
    assert 0 < (codes["padding"] or 0) < 1e-6
    assert "padding" not in found(with_costs((op, "matrix unit", 1e-6)))


def test_a_step_that_the_host_bounds():
    program = replace(report("step"), records=1_000, host_seconds=6e-3)
    (item,) = [item for item in advise(program) if item.code == "host-bound"]
    assert item.text.startswith("the host needs 6.0 ms of this machine's CPU to record 1,000 ops")
    assert item.seconds == pytest.approx(6e-3 - program.seconds)
    assert not [item for item in advise(replace(program, host_seconds=1e-9)) if item.code == "host-bound"]


def test_every_rule_is_documented():
    page = (ROOT / "docs/tpu-report.md").read_text()
    assert all(f"| `{code}` |" in page for code in RULES)
