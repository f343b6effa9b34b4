"""Reading scheduled HLO."""

from __future__ import annotations

import json

import pytest

from lazytpu.inspection.tpu.arrays import arrays
from lazytpu.inspection.tpu.hlo import ProgramLine, read_hlo
from lazytpu.inspection.tpu.wire import Message
from tests.inspection.tpu.recorded import hlo, parsed, proto, text

KERNEL = """HloModule m

ENTRY %e (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  %k = f32[8] custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"a":"{}"
}}, metadata={op_name="pallas_call"}
  ROOT %n = f32[8] negate(%k)
}
"""


def test_ops_are_read_in_their_order():
    entry = hlo("step").entry
    assert [op.name for op in entry.ops][:4] == ["Arg_1.1", "copy-start", "Arg_2.1", "copy-start.1"]
    fusion = entry.by_name["convolution_tanh_fusion"]
    assert (fusion.opcode, fusion.operands, fusion.called) == ("fusion", ("x.1", "copy-done"), ("fused_computation",))
    assert fusion.fusion == "kOutput" and entry.ops[-1].fusion == ""
    assert entry.ops[-1].opcode == "tuple"
    assert [user.name for user, _ in entry.users["convolution_tanh_fusion"]] == [
        "convolution_reduce_fusion",
        "convolution_subtract_fusion",
    ]


def test_cycles_come_from_the_compiler():
    entry = hlo("step").entry
    assert entry.by_name["convolution_tanh_fusion"].cycles == 4086
    assert entry.by_name["copy-start"].cycles is None
    assert entry.by_name["convolution_tanh_fusion"].simulated is None


def test_simulated_cycles_come_first():
    text = """HloModule m

ENTRY %e (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %n = f32[8]{0} negate(%p), backend_config={"window_config":{"estimated_cycles":"90"},BUNDLES}
}
""".replace("BUNDLES", '"bundle_analysis_data":{"estimated_cycles":"70"}')
    op = parsed(text).entry.ops[-1]
    assert op.cycles == op.simulated == 70


def test_lines_survive_compilation():
    """Lines of forward ops, and, by stack frames, of backward ones."""
    module = hlo("step")
    lines = {op.name: module.line(op) for op in module.entry.ops}
    assert lines["convolution_tanh_fusion"] == ProgramLine("train.py", 10)
    assert lines["convolution_subtract_fusion"] == ProgramLine("train.py", 12, backward=True)
    assert str(lines["convolution_subtract_fusion"]) == "train.py:12 (backward)"
    assert lines["copy-start"] is None
    assert module.named(module.entry.by_name["x.1"]) == "x"


def test_lines_of_the_modules_own_text_are_left_out():
    module = hlo("loop")
    assert module.line(module.entry.by_name["while"]) is None


def test_fused_ops_are_found_at_any_depth():
    module = hlo("step")
    inside = [op.name for op in module.inside(module.entry.by_name["convolution_reduce_fusion"])]
    assert {"convolution.5", "backward.0", "bitcast.4", "backward.5"} <= set(inside)
    assert len(inside) == len(set(inside))


def test_loops_name_their_computations():
    loop = hlo("loop").entry.by_name["while"]
    assert loop.called == ("wide.region_0.1.sunk", "wide.region_1.2")  # the body, and the condition


def test_constants_keep_their_value():
    condition = hlo("loop").computations["wide.region_1.2"]
    assert condition.by_name["constant.3"].constant == 7
    assert condition.by_name["constant.3"].operands == ()


def test_attributes_of_a_kernel_may_span_lines():
    """The text of a kernel call spans several lines, and one line begins with braces."""
    module = parsed(KERNEL)
    assert [op.name for op in module.entry.ops] == ["p", "k", "n"]
    assert module.entry.by_name["k"].target == "tpu_custom_call"
    assert json.loads(module.entry.by_name["k"].frontend["kernel_metadata"]) == {"a": "{}"}


def test_not_an_hlo_module():
    for data in (b"", b"HloModule m", b"\x0a\x02\x0a\x00"):
        with pytest.raises(ValueError, match=r"expected an HloProto|not a protobuf message"):
            read_hlo(data)


def test_truncated_bytes_raise():
    data = proto(text("step.hlo"))
    with pytest.raises(ValueError, match="not a protobuf message"):
        read_hlo(data[:-5])


def test_dangling_references_raise():
    """An operand that no op produces: ids are 64-bit numbers, of the computation and of the op."""
    data = proto("HloModule m\n\nENTRY %e {\n  %p = f32[] parameter(0)\n  ROOT %n = f32[] negate(%p)\n}\n")
    module = Message(data).message(1).messages(3)[0]
    first, second = module.messages(2)
    (operand,) = second.integers(36)
    assert operand == first.integer(35)
    packed = bytes(second.fields[36][0])
    with pytest.raises(ValueError, match="an op of e refers to number"):
        read_hlo(data.replace(_packed(packed), _packed(bytes([packed[0] ^ 64]) + packed[1:])))


def _packed(operands: bytes) -> bytes:
    return b"\xa2\x02" + bytes([len(operands)]) + operands


def test_ops_missing_from_the_schedule_raise():
    data = proto(KERNEL)
    module = Message(data).message(1)
    order = bytes(module.message(7).messages(1)[0].message(2).fields[1][0])
    assert data.count(order) == 1
    with pytest.raises(ValueError, match="the schedule of e has 3 ops, not the 3 ops of the computation"):
        read_hlo(data.replace(order, bytes([order[0] ^ 64]) + order[1:]))


def test_an_unknown_element_type_raises():
    (entry,) = Message(proto(KERNEL)).message(1).messages(3)
    shape = bytes(entry.messages(2)[0].fields[3][0])
    assert shape[:2] == b"\x10\x0b"  # f32
    with pytest.raises(ValueError, match="element type 99"):
        arrays(Message(b"\x10\x63" + shape[2:]))
