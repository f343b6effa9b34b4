"""Reading scheduled HLO."""

from __future__ import annotations

import pytest

from lazytpu.inspect.tpu.hlo import Line, parse_hlo
from tests.inspect.tpu.recorded import hlo


def test_ops_are_read_in_their_order():
    entry = hlo("step").entry
    assert [op.name for op in entry.ops][:4] == ["Arg_1.1", "copy-start", "Arg_2.1", "copy-start.1"]
    fusion = entry.by_name["convolution_tanh_fusion"]
    assert (fusion.opcode, fusion.operands, fusion.called) == ("fusion", ("x.1", "copy-done"), ("fused_computation",))
    assert fusion.attribute("kind") == "kOutput"
    assert fusion.attribute("calls") == "%fused_computation"
    assert fusion.attribute("to_apply") is None
    assert entry.root.opcode == "tuple"
    assert [user.name for user, _ in entry.users["convolution_tanh_fusion"]] == [
        "convolution_reduce_fusion",
        "convolution_subtract_fusion",
    ]


def test_cycles_are_the_compilers():
    entry = hlo("step").entry
    assert entry.by_name["convolution_tanh_fusion"].cycles == 4086
    assert entry.by_name["copy-start"].cycles is None
    assert not entry.by_name["convolution_tanh_fusion"].simulated


def test_simulated_cycles_come_first():
    text = """HloModule m

ENTRY %e (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p), backend_config={"window_config":{"estimated_cycles":"90"},BUNDLES}
}
""".replace("BUNDLES", '"bundle_analysis_data":{"estimated_cycles":"70"}')
    op = parse_hlo(text).entry.root
    assert (op.cycles, op.simulated) == (70, True)


def test_lines_survive_compilation():
    """Of forward ops, and by stack frames of backward ones."""
    module = hlo("step")
    lines = {op.name: module.line(op) for op in module.entry.ops}
    assert lines["convolution_tanh_fusion"] == Line("train.py", 10)
    assert lines["convolution_subtract_fusion"] == Line("train.py", 12, backward=True)
    assert str(lines["convolution_subtract_fusion"]) == "train.py:12 (backward)"
    assert lines["copy-start"] is None
    assert module.named(module.entry.by_name["x.1"]) == "x"


def test_a_line_of_the_modules_own_text_is_none():
    module = hlo("loop")
    assert module.line(module.entry.by_name["while"]) is None


def test_what_is_fused_is_found_at_any_depth():
    module = hlo("step")
    inside = [op.name for op in module.inside(module.entry.by_name["convolution_reduce_fusion"])]
    assert {"convolution.5", "backward.0", "bitcast.4", "backward.5"} <= set(inside)
    assert len(inside) == len(set(inside))


def test_a_result_may_lie_in_an_argument():
    assert hlo("step").aliases == {(1,): 2}
    assert hlo("loop").aliases == {}


def test_loops_name_their_computations():
    loop = hlo("loop").entry.by_name["while"]
    assert set(loop.called) == {"wide.region_1.2", "wide.region_0.1.sunk"}
    assert loop.attribute("condition") == "%wide.region_1.2"


def test_constants_keep_their_value():
    condition = hlo("loop").computations["wide.region_1.2"]
    assert condition.by_name["constant.3"].arguments == "7"
    assert condition.by_name["constant.3"].operands == ()


@pytest.mark.parametrize("text", ["", "module @m {}", "HloModule m\n"])
def test_what_is_no_hlo(text: str):
    with pytest.raises(ValueError, match="expected HLO text"):
        parse_hlo(text)
