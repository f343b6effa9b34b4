"""The kernels of attention in a report: by libtpu, for a small step."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazytpu.inspection.tpu.compiling import report_text
from lazytpu.inspection.tpu.hlo import ProgramLine
from lazytpu.inspection.tpu.work import work
from lazytpu.ir.attention_work import AttentionSize, KernelWork
from tests.inspection.tpu.recorded import parsed

KIND = "tensor<1x4x1024x64xbf16>"
HOW = 'extra = "" causal = true scale = 0.125 precision = default'
STEP = f"""
func.func @main(%q: {KIND}, %k: {KIND}, %v: {KIND}, %g: {KIND}) -> ({KIND}, {KIND}, {KIND}, {KIND}) {{
  %0 = lazytpu.attention %q, %k, %v {HOW} : ({KIND}, {KIND}, {KIND}) -> {KIND} loc("model.py":5:0)
  %1, %2, %3 = lazytpu.attention_backward %g, %q, %k, %v {HOW} : ({KIND}, {KIND}, {KIND}, {KIND}) -> ({KIND}, {KIND}, {KIND}) loc("backward"("model.py":5:0))
  func.return %0, %1, %2, %3 : {KIND}, {KIND}, {KIND}, {KIND}
}}
"""  # noqa: E501


def test_kernels_have_a_time_a_line_and_their_products(empty_cache: Path):
    (program,) = report_text(STEP, "v6e:2x2", name="step").programs
    size = AttentionSize(1, 4, 4, 1024, 1024, 64, 64, 2, causal=True)
    assert size.blocks == 3, "of four, one is hidden"
    flops = {name: 2 * 4 * 3 * 512 * 512 * 64 * count for name, count in (("fwd", 2), ("dq", 3), ("dkv", 4))}
    assert {name: size.work(name).flops for name in flops} == flops
    assert program.complete and sorted(cost.flops for cost in program.kernels) == sorted(flops.values())
    assert program.flops == program.module.least_flops == sum(flops.values())
    assert all(cost.seconds > 0 for cost in program.kernels)
    lines = [program.line(cost.op) for cost in program.kernels]
    assert sorted(map(str, lines)) == ["model.py:5", "model.py:5 (backward)", "model.py:5 (backward)"]
    assert set(program.by_line) <= {ProgramLine("model.py", 5), ProgramLine("model.py", 5, backward=True), None}


@pytest.mark.parametrize(
    ("size", "blocks"),
    [
        (AttentionSize(1, 1, 1, 2048, 2048, 64, 64, 2), 16),
        (AttentionSize(1, 1, 1, 2048, 2048, 64, 64, 2, causal=True), 10),
        (AttentionSize(1, 1, 1, 2048, 2048, 64, 64, 2, causal=True, window=512), 7),
        (AttentionSize(1, 1, 1, 1000, 1000, 64, 64, 2, causal=True), 3),
        (AttentionSize(1, 1, 1, 512, 2048, 64, 64, 2), 4),
    ],
)
def test_blocks_that_a_mask_hides_are_skipped(size: AttentionSize, blocks: int):
    assert size.blocks == blocks


def test_bytes_that_a_kernel_moves():
    """One side once; of the other side, a block for each computed one; row sums in f32, written to all lanes."""
    size = AttentionSize(1, 2, 1, 1024, 1024, 64, 64, 2)
    forward = size.work("fwd")
    assert forward == KernelWork(
        2 * 2 * 4 * 512**2 * 128, 2 * 4 * 512**2, 2 * 1024 * 128 * 2 + 2 * 1024 * 4 * 128 + 2 * 4 * 512 * 128 * 2
    )
    assert size.work("dq").bytes == forward.bytes - 2 * 1024 * 4 * 126  # reads two sums for each row


KERNEL = """HloModule m

ENTRY %e (x: bf16[1024,64], y: f32[1024,128]) -> bf16[1024,64] {{
  %x = bf16[1024,64]{{1,0:T(8,128)}} parameter(0)
  %y = f32[1024,128]{{1,0:T(8,128)S(1)}} parameter(1)
  ROOT %k = bf16[1024,64]{{1,0:T(8,128){space}}} custom-call(%x, %y), custom_call_target="tpu_custom_call"{aliasing}, backend_config={{"custom_call_config":{{"cost_estimate":{{"flops":"0","transcendentals":"0","bytes_accessed":"{bytes}"}}}}}}
}}
"""  # noqa: E501

ELEMENTS = 2 * 2 * 1024 * 64 + 4 * 1024 * 128
TILES = 2 * 1024 * 128  # of x or of the result: half of each tile is padding


@pytest.mark.parametrize(
    ("space", "aliasing", "bytes", "moved"),
    [
        ("", "", ELEMENTS, 2 * TILES),  # everything once: the bytes in HBM, with padding
        ("", "", 3 * ELEMENTS, 6 * TILES),  # three times
        ("S(1)", "", ELEMENTS, TILES),
        ("", "", 0, TILES),  # the result is written, whatever the estimate is
        ("", ", output_to_operand_aliasing={{}: (0, {})}", ELEMENTS // 8, 2 * TILES // 8),  # but not a part of x
    ],
)
def test_bytes_of_a_kernel_are_those_in_hbm_with_padding(space: str, aliasing: str, bytes: int, moved: int):
    module = parsed(KERNEL.format(space=space, aliasing=aliasing, bytes=bytes))
    assert work(module, module.entry, module.entry.ops[-1]).hbm_bytes == pytest.approx(moved)
