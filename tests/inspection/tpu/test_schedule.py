"""The schedule on a model of the chip."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lazytpu.inspection.tpu.schedule import LEAST, OTHERS, PRODUCTS, schedule
from lazytpu.passes.generations import GENERATIONS
from tests.inspection.tpu.recorded import cost_of, hlo, parsed, text

V6E = GENERATIONS["v6e"]


def test_a_product_takes_its_cycles():
    timeline = schedule(hlo("step"), V6E)
    product = cost_of(timeline.costs, "convolution_tanh_fusion")
    assert product.bound == "matrix unit"
    assert product.seconds == pytest.approx(4086 * PRODUCTS / 1.75e9)


def test_a_copy_takes_its_bytes():
    copy = cost_of(schedule(hlo("sparsecore"), V6E, 4).costs, "copy.5")
    assert copy.bound == "HBM"
    assert copy.seconds == pytest.approx(2 * 1024 * 512 * 4 / 1638e9)


def test_a_small_op_takes_the_least_there_is():
    loop = schedule(hlo("loop"), V6E)
    assert cost_of(loop.costs, "add.2").bound == "latency"
    assert cost_of(loop.costs, "add.2").seconds == pytest.approx(7 * LEAST / 1.75e9)


def test_other_ops_on_the_chip_take_part_of_the_compilers_estimate():
    module_text = """HloModule m

ENTRY %e (p: f32[8]) -> f32[8] {
  %p = f32[8]{0:T(1024)S(1)} parameter(0)
  ROOT %n = f32[8]{0:T(1024)S(1)} exponential(%p), backend_config={"window_config":{"estimated_cycles":"20000"}}
}
"""
    (cost,) = schedule(parsed(module_text), V6E).costs
    assert (cost.bound, cost.seconds) == ("vector unit", pytest.approx(20000 * OTHERS / 1.75e9))


def test_a_loop_runs_as_often_as_it_says():
    timeline = schedule(hlo("loop"), V6E)
    product = cost_of(timeline.costs, "convolution_tanh_fusion.2")
    assert product.runs == 7 and not timeline.unknown
    assert product.work.flops == 2 * 512**3
    (round_trips,) = [span for span in timeline.spans if span.op == "while"]
    inner = ["add.2", "copy.11", "convolution_tanh_fusion.2"]
    assert round_trips.end - round_trips.start == pytest.approx(sum(cost_of(timeline.costs, n).seconds for n in inner))


def test_a_loop_that_never_runs_takes_no_time():
    timeline = schedule(parsed(text("loop.hlo").replace("constant(7)", "constant(0)")), V6E)
    assert not [span for span in timeline.spans if span.op == "while"] and not timeline.unknown
    assert cost_of(timeline.costs, "convolution_tanh_fusion.2").work.flops == 2 * 512**3  # it is still in the program


def test_a_loop_that_may_end_before_its_bound_is_of_unknown_length():
    comparison = "%compare.9 = pred[]{:T(512)} compare(%get-tuple-element.17, %get-tuple-element.17), direction=NE\n"
    timeline = schedule(parsed(text("loop.hlo").replace("  ROOT %compare.0", f"  {comparison}  ROOT %compare.0")), V6E)
    assert timeline.unknown == ["while"]


UNKNOWN = "compare(%get-tuple-element.17, %get-tuple-element.17)"


def test_a_loop_of_unknown_length_is_reported():
    timeline = schedule(parsed(text("loop.hlo").replace("compare(%get-tuple-element.17, %constant.3)", UNKNOWN)), V6E)
    assert timeline.unknown == ["while"]
    assert cost_of(timeline.costs, "convolution_tanh_fusion.2").runs == 1


def test_a_transfer_is_waited_for_where_it_is_needed():
    timeline = schedule(hlo("step"), V6E)
    first, second = cost_of(timeline.costs, "copy-start"), cost_of(timeline.costs, "copy-start.1")
    assert first.waited == pytest.approx(1000 * 640 * 4 / 1638e9)  # no other work meanwhile
    assert second.waited == 0 and second.beside == pytest.approx(640 * 104 * 4 / 1638e9)  # behind the first product


def test_collectives_are_exposed_or_hidden():
    timeline = schedule(hlo("collectives"), V6E, 4)
    reduced, permuted = cost_of(timeline.costs, "all-reduce.0"), cost_of(timeline.costs, "collective-permute-start")
    assert reduced.waited == reduced.seconds == reduced.beside
    assert permuted.waited == 0 and permuted.beside > 0
    assert permuted.collective == "collective-permute"


CHAIN = """HloModule m

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

%first (p: f32[1024,1024]) -> (f32[1024,1024], u32[]) {
  %p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  %a = f32[1024,1024]{1,0:T(8,128)} all-reduce(%p), to_apply=%add, frontend_attributes={chain_id="0"}
  ROOT %t = (f32[1024,1024]{1,0:T(8,128)}, u32[]) custom-call(%a), custom_call_target="AsyncStart"
}

%last (p: f32[1024,1024], q: u32[]) -> f32[1024,1024] {
  %p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  %q = u32[] parameter(1)
  ROOT %a = f32[1024,1024]{1,0:T(8,128)} all-reduce(%p), to_apply=%add, frontend_attributes={chain_id="0"}
}

ENTRY %e (p: f32[1024,1024]) -> f32[1024,1024] {
  %p = f32[1024,1024]{1,0:T(8,128)} parameter(0)
  %async-collective-start = (f32[1024,1024]{1,0:T(8,128)}, u32[]) fusion(%p), kind=kCustom, calls=%first
  %value = f32[1024,1024]{1,0:T(8,128)} get-tuple-element(%async-collective-start), index=0
  %signal = u32[] get-tuple-element(%async-collective-start), index=1
  %between = f32[1024,1024]{1,0:T(8,128)} exponential(%p)
  ROOT %async-collective-done = f32[1024,1024]{1,0:T(8,128)} fusion(%value, %signal), kind=kCustom, calls=%last
}
"""


def test_a_reduction_continued_by_fusions_counts_once() -> None:
    """v5e: the ops that start and end it both contain all of it, and it runs in between."""
    timeline = schedule(parsed(CHAIN), GENERATIONS["v5e"], 4)
    reduced, between = cost_of(timeline.costs, "async-collective-start"), cost_of(timeline.costs, "between")
    assert [cost.collective for cost in timeline.costs] == ["all-reduce", None]
    assert reduced.payload == 4 * 2**20
    assert reduced.waited == pytest.approx(reduced.beside - between.seconds)
    assert timeline.seconds == pytest.approx(reduced.beside)


def test_the_core_is_never_in_two_places():
    for name in ("step", "collectives", "sparsecore", "loop"):
        timeline = schedule(hlo(name), V6E, 4)
        for lane in {span.lane for span in timeline.spans}:
            spans = sorted((span for span in timeline.spans if span.lane == lane), key=lambda span: span.start)
            if lane != "links":  # a permutation and another collective may use different links
                assert all(a.end <= b.start + 1e-15 for a, b in pairwise(spans)), (name, lane)
        core = [span.end for span in timeline.spans if span.lane == "core"]
        assert max(core) == pytest.approx(timeline.seconds)


def test_costs_add_up():
    """The core's times add up to the whole time: nothing is lost, and nothing counted twice."""
    for name in ("step", "collectives", "sparsecore", "loop"):
        timeline = schedule(hlo(name), V6E, 4)
        assert sum(cost.seconds for cost in timeline.costs) == pytest.approx(timeline.seconds)


def test_a_slower_chip_takes_longer():
    assert schedule(hlo("step"), GENERATIONS["v5e"]).seconds > schedule(hlo("step"), V6E).seconds
