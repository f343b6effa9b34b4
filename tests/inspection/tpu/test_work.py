"""The operations and bytes of an op."""

from __future__ import annotations

import numpy as np
import pytest
from jaxlib._hlo import hlo_module_from_text
from jaxlib._jax import hlo_module_cost_analysis

from lazytpu.inspection.tpu.work import is_free, matrix_flops, work
from lazytpu.runtime.xla.client import client
from tests.inspection.tpu.recorded import hlo, parsed


def test_products_inside_of_fusions_count():
    module = hlo("step")
    op_work = work(module, module.entry, module.entry.by_name["convolution_tanh_fusion"])
    assert op_work.matrix and op_work.flops == 2 * 256 * 1000 * 640
    assert op_work.hbm_bytes == 256 * 1000 * 4  # x alone: the weights and the result are on the chip


def test_an_op_that_is_not_fused():
    module = hlo("sparsecore")
    op_work = work(module, module.entry, module.entry.by_name["copy.5"])
    assert (op_work.flops, op_work.hbm_bytes, op_work.matrix) == (0, 2 * 1024 * 512 * 4, False)


CONVOLUTION = """HloModule m

ENTRY %e (x: bf16[{x}], w: bf16[{w}]) -> bf16[{y}] {{
  %x = bf16[{x}] parameter(0)
  %w = bf16[{w}] parameter(1)
  ROOT %y = bf16[{y}] {op}
}}
"""


@pytest.mark.parametrize(
    ("x", "w", "y", "op", "flops"),
    [
        ("4,8", "8,5", "4,5", "dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 2 * 4 * 8 * 5),
        (
            "7,4,8", "7,8,5", "7,4,5",
            "dot(%x, %w), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}",
            2 * 7 * 4 * 8 * 5,
        ),
        (
            "2,9,9,16", "3,3,16,32", "2,7,7,32",
            "convolution(%x, %w), window={size=3x3}, dim_labels=b01f_01io->b01f", 2 * 2 * 7 * 7 * 32 * 3 * 3 * 16,
        ),
        (  # the compiler's form of 12 products of [64,128] by [128,64]
            "12,64,128", "12,128,64", "12,64,64",
            "convolution(%x, %w), window={size=12 stride=11 pad=0_11 lhs_dilate=12}, dim_labels=0bf_0io->0bf",
            2 * 12 * 64 * 128 * 64,
        ),
        (  # padding is no work: 7 of the 9 positions of 3 taps on 3 elements
            "1,3,3,4", "3,3,4,8", "1,3,3,8",
            "convolution(%x, %w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f", 2 * 7 * 7 * 4 * 8,
        ),
        (  # the gradient of a window with stride 2
            "1,2,2,4", "2,2,4,8", "1,4,4,8",
            "convolution(%x, %w), window={size=2x2 pad=1_1x1_1 lhs_dilate=2x2}, dim_labels=b01f_01io->b01f",
            2 * 4 * 4 * 4 * 8,
        ),
        ("4,8", "4,8", "4,8", "add(%x, %w)", 0),
    ],
)  # fmt: skip
def test_flops_of_products(x: str, w: str, y: str, op: str, flops: float):
    entry = parsed(CONVOLUTION.format(x=x, w=w, y=y, op=op)).entry
    assert matrix_flops(entry, entry.ops[-1]) == flops


def drawn(draw: np.random.Generator) -> str:
    """A convolution with padding of either sign, strides, dilation, and groups."""
    size, stride, holes, base = (draw.integers(1, most, 2) for most in (5, 4, 3, 4))
    dims, low, high = draw.integers(8, 14, 2), *draw.integers(-1, 6, (2, 2))
    groups = int(draw.choice([1, 1, 2, 4]))
    sizes = ((dims - 1) * base + 1 + low + high - ((size - 1) * holes + 1)) // stride + 1
    pad = "x".join(f"{a}_{b}" for a, b in zip(low, high, strict=True))
    stride, holes, base = ("x".join(map(str, numbers)) for numbers in (stride, holes, base))
    op = f"window={{size={size[0]}x{size[1]} stride={stride} pad={pad} lhs_dilate={base} rhs_dilate={holes}}}"
    op = f"convolution(%x, %w), {op}, dim_labels=b01f_01io->b01f, feature_group_count={groups}"
    x, w, y = (f"3,{dims[0]},{dims[1]},{4 * groups}", f"{size[0]},{size[1]},4,8", f"3,{sizes[0]},{sizes[1]},8")
    return CONVOLUTION.format(x=x, w=w, y=y, op=op)


def test_flops_of_windows_equal_xlas():
    draw = np.random.default_rng(0)
    for _ in range(60):
        text = drawn(draw)
        entry, expected = parsed(text).entry, hlo_module_cost_analysis(client(), hlo_module_from_text(text))
        assert matrix_flops(entry, entry.ops[-1]) == expected.get("flops", 0), text


FUSED = """HloModule m

%f (a: f32[64,128], b: f32[8,128], i: s32[]) -> f32[{result}] {{
  %a = f32[64,128]{{1,0:T(8,128)}} parameter(0)
  %b = f32[8,128]{{1,0:T(8,128)}} parameter(1)
  %i = s32[]{{:T(128)S(2)}} parameter(2)
  ROOT %r = f32[{result}]{{1,0:T(8,128)}} {op}
}}

ENTRY %e (a: f32[64,128], b: f32[8,128], i: s32[]) -> f32[{result}] {{
  %a = f32[64,128]{{1,0:T(8,128)}} parameter(0)
  %b = f32[8,128]{{1,0:T(8,128)S(1)}} parameter(1)
  %i = s32[]{{:T(128)S(2)}} parameter(2)
  ROOT %fusion = f32[{result}]{{1,0:T(8,128)}} fusion(%a, %b, %i), kind=kLoop, calls=%f
}}
"""


@pytest.mark.parametrize(
    ("result", "op", "rows"),
    [
        ("8,128", "dynamic-slice(%a, %i, %i), dynamic_slice_sizes={8,128}", 8 + 8),  # reads only its slice
        ("64,128", "dynamic-update-slice(%a, %b, %i, %i)", 8 + 8),  # writes in place
        ("64,128", "negate(%a)", 64 + 64),
    ],
)
def test_a_fusion_moves_only_needed_bytes(result: str, op: str, rows: int):
    module = parsed(FUSED.format(result=result, op=op))
    assert work(module, module.entry, module.entry.ops[-1]).hbm_bytes == rows * 128 * 4


def test_some_ops_take_no_time():
    entry = hlo("sparsecore").entry
    free = {op.name for op in entry.ops if is_free(op)}
    assert {"param", "tuple.3", "prepare_start_all-reduce.4.cloned.1.call-start"} <= free
    assert not {"fusion", "copy.5", "all-reduce.4.cloned.1.call-start"} & free
