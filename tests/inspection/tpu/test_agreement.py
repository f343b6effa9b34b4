"""Inconsistent figures are an error, which states both of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lazytpu.inspection.tpu.agreement import InconsistentError, agree, once
from lazytpu.inspection.tpu.hlo import Computation
from lazytpu.inspection.tpu.module import read_module
from tests.inspection.tpu.recorded import report


@pytest.mark.parametrize(("name", "devices"), [("step", 1), ("collectives", 4)])
def test_the_compiled_module_agrees_with_its_source(name: str, devices: int):
    figures = report(name, devices=devices)
    assert once(figures.hlo, figures.hlo.entry) == figures.flops > 0
    assert 0 < figures.module.least_flops <= figures.flops


def test_a_module_that_lost_its_products():
    """As when reading stops at an unknown construct: both figures are reported."""
    figures = report("step")
    entry = Computation("main", [op for op in figures.hlo.entry.ops if op.opcode != "fusion"])
    with pytest.raises(
        InconsistentError, match=r"report of train does not add up: at least 0\.328 GFLOP .* its output has 0\.000"
    ):
        agree(replace(figures.hlo, entry=entry), figures.module, replace(figures.schedule, costs=[]), 1, "train")


def test_the_schedule_has_all_of_the_module():
    figures = report("step")
    costs = [cost for cost in figures.schedule.costs if cost.op.name != "convolution_tanh_fusion"]
    with pytest.raises(InconsistentError, match=r"the module has 0\.393 GFLOP, .* but its schedule 0\.066"):
        agree(figures.hlo, figures.module, replace(figures.schedule, costs=costs), 1, "step")


KINDS = "(tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>"
DOT = f"stablehlo.dot_general {{}}, contracting_dims = [1] x [0] : {KINDS}"
EXACT = ", precision = [HIGHEST, HIGHEST] :"
ONCE = 2 * 64 * 32 * 16
CASE = f"""%0 = "stablehlo.case"({{}}) ({{{{
  %1 = {DOT.format("%x, %w")}
  stablehlo.return %1 : tensor<64x16xf32>
}}}}, {{{{
  stablehlo.return %z : tensor<64x16xf32>
}}}}) : (tensor<i32>) -> tensor<64x16xf32>"""


@pytest.mark.parametrize(
    ("lines", "result", "flops"),
    [
        ("%0 = " + DOT.format("%x, %w"), "%0", ONCE),
        ("%0 = " + DOT.format("%x, %w") + "\n%1 = stablehlo.negate %z : tensor<64x16xf32>", "%1", 0),  # unused
        (  # the same twice
            f"%0 = {DOT.format('%x, %w')}\n%1 = {DOT.format('%x, %w')}\n%2 = stablehlo.add %0, %1 : tensor<64x16xf32>",
            "%2", ONCE,
        ),
        (  # the same twice
            f"%0 = {DOT.format('%x, %w')}\n%1 = {DOT.format('%x, %w').replace(' :', EXACT, 1)}\n"
            "%2 = stablehlo.add %0, %1 : tensor<64x16xf32>",
            "%2", 2 * ONCE,
        ),
        (  # a broadcast number becomes a sum
            "%c = stablehlo.constant dense<1.0> : tensor<f32>\n"
            "%b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<32x16xf32>\n"
            "%e = stablehlo.exponential %b : tensor<32x16xf32>\n%0 = " + DOT.format("%x, %e"), "%0", 0,
        ),
        ("%0 = call @twice(%x, %w) : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>", "%0", 2 * ONCE),
        (CASE.format("%i"), "%0", 0),  # a branch may be taken or not
        ("%k = stablehlo.constant dense<0> : tensor<i32>\n" + CASE.format("%k"), "%0", ONCE),  # this one is taken
    ],
)  # fmt: skip
def test_unavoidable_flops(lines: str, result: str, flops: int):
    kinds = "%x: tensor<64x32xf32>, %w: tensor<32x16xf32>, %z: tensor<64x16xf32>, %i: tensor<i32>"
    text = f"""module @m {{
func.func public @main({kinds}) -> tensor<64x16xf32> {{
{lines}
return {result} : tensor<64x16xf32>
}}
func.func private @twice(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {{
  %0 = {DOT.format("%x, %w")}
  %n = stablehlo.negate %x : tensor<64x32xf32>
  %1 = {DOT.format("%n, %w")}
  %2 = stablehlo.multiply %0, %1 : tensor<64x16xf32>
  return %2 : tensor<64x16xf32>
}}
}}
"""
    assert read_module(text).least_flops == flops
