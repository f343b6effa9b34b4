"""Branches and loops in reports: their work, time, lines, differences, and page."""

from __future__ import annotations

import pytest

from lazytpu.inspection.diff import diff
from lazytpu.inspection.html.data import page_data
from lazytpu.inspection.step.costs import seconds_of
from lazytpu.inspection.step.graphs import grouped
from lazytpu.inspection.step.model import Model
from lazytpu.inspection.step.reading import StepProgram, read
from lazytpu.inspection.textual import stats
from lazytpu.inspection.tpu.module import read_module
from lazytpu.ir.text import parse_module, print_module
from lazytpu.lowering import emit, stablehlo_text
from lazytpu.passes.generations import GENERATIONS
from lazytpu.passes.pipeline import run_pipeline
from tests.inspection.step.samples import costed

V6E = GENERATIONS["v6e"]
M, C = "tensor<1024x1024xf32>", "tensor<i32>"
PRODUCT = f"lhs_contract = [1] rhs_contract = [0] precision = default : {M}"
FLOPS = 2 * 1024**3
TEXT = f"""
builtin.module {{
  func.func @main(%c : tensor<i1>, %n : {C}, %x : {M}) -> ({M}) {{
    %s = lazytpu.constant 0 : {C}
    %e = lazytpu.exp %x : {M}
    %i, %h = lazytpu.while LIMITED : ({C}, {M}, {C}, {M}) -> ({C}, {M}) while(%j, %a, %m, %w) {{
      %g = lazytpu.compare LT %j, %m : ({C}, {C}) -> tensor<i1>
      lazytpu.yield %g : tensor<i1>
    }} do(%j, %a, %m, %w) {{
      %d = lazytpu.constant 1 : {C}
      %k = lazytpu.add %j, %d : {C}
      %p = lazytpu.dot_general %a, %w {PRODUCT} loc("model.py":5:0)
      lazytpu.yield %k, %p : {C}, {M}
    }} loc("model.py":4:0)
    %r = lazytpu.if %c, %h : (tensor<i1>, {M}) -> {M} then(%a) {{
      %q = lazytpu.dot_general %a, %a {PRODUCT} loc("model.py":8:0)
      lazytpu.yield %q : {M}
    }} else(%a) {{
      %q = lazytpu.neg %a : {M} loc("model.py":10:0)
      lazytpu.yield %q : {M}
    }} loc("model.py":7:0)
    func.return %r : {M}
  }}
}}
"""
UNKNOWN = TEXT.replace("LIMITED", "%s, %e, %n, %x carried = 2")
KNOWN = TEXT.replace("LIMITED", "%s, %e, %l, %x carried = 2").replace(
    f"%s = lazytpu.constant 0 : {C}", f"%s = lazytpu.constant 0 : {C}\n    %l = lazytpu.constant 6 : {C}"
)


@pytest.fixture
def known() -> StepProgram:
    return read(KNOWN)


def test_work_of_branches_and_loops(known: StepProgram) -> None:
    loop, branch = (op for op in known.ops if op.regions)
    assert (loop.kind, loop.trips, branch.kind, branch.trips) == ("while", 6, "if", None)
    assert loop.flops == pytest.approx(6 * FLOPS, rel=1e-6)
    assert branch.flops == FLOPS
    (unknown,) = [op for op in read(UNKNOWN).ops if op.kind == "while"]
    assert unknown.trips is None
    assert unknown.flops == pytest.approx(FLOPS, rel=1e-6)


def test_ops_in_regions_have_their_text_and_lines(known: StepProgram) -> None:
    (loop, branch) = (op for op in known.ops if op.regions)
    product = loop.regions[1].ops[-1]
    assert product.text.startswith("%p = lazytpu.dot_general %a_1, %w_1 ")
    assert (product.place, product.operands) == ("model.py:5", (~1, ~3))
    assert [region.name for region in branch.regions] == ["then", "else"]
    assert len(list(known.all_ops)) == len(known.ops) + 1 + 3 + 1 + 1
    assert branch.text.endswith("then(%a) {")


def test_time_of_branches_and_loops(known: StepProgram) -> None:
    model, unknown = Model(known, V6E), Model(read(UNKNOWN), V6E)
    loop, branch = (k for k in model.kernels if k.root.regions)
    (once, _) = (k for k in unknown.kernels if k.root.regions)
    assert loop.seconds == pytest.approx(6 * once.seconds)
    assert once.bound == f"{loop.bound}, one iteration of an unknown number"
    assert branch.seconds - branch.waited == pytest.approx(model.inside[branch.root.number][0].seconds)
    lines = {place: seconds_of(ops) for place, ops in costed(KNOWN).by_place.items()}
    assert next(iter(lines)) == "model.py:5"
    assert not any(kernel.waited for inner in model.inside.values() for m in inner for kernel in m.kernels)
    assert lines["model.py:5"] > 5 * lines["model.py:8"]
    assert sum(lines.values()) == pytest.approx(sum(kernel.seconds for kernel in model.kernels))
    assert max(model.memory) >= 4 * 3 * 1024**2


def test_the_page_and_the_graph_have_them() -> None:
    step = costed(KNOWN)
    data = page_data(step)
    lines = {data["places"][place]: (us, ops) for place, us, ops, *_ in data["lines"]}
    assert lines["model.py:5"][0] > 0
    assert lines["model.py:5"][1] == lines["model.py:8"][1] == 1
    assert sum(step.op_seconds) == pytest.approx(sum(map(seconds_of, step.by_place.values())), rel=0.05)
    assert grouped(step, "op").number_of_nodes() == 5


def test_counts_of_ops() -> None:
    sizes = stats(KNOWN).ops
    assert sizes["lazytpu.dot_general"] == [4 * 1024**2] * 2
    assert sizes["lazytpu.if"] == [4 * 1024**2]
    assert "lazytpu.yield" not in sizes
    lowered = stats(stablehlo_text(emit(parse_module(KNOWN)))).ops
    assert len(lowered["stablehlo.dot_general"]) == 2
    assert set(lowered) >= {"stablehlo.while", "stablehlo.if"}
    assert "cond" not in lowered


def changed(before: str, after: str) -> list[str]:
    return [f"{line.sign} {line.text.strip()}" for line in diff(before, after) if line.sign != " "]


def test_differences_in_regions() -> None:
    module = parse_module(KNOWN)
    text = print_module(module)
    assert changed(text, text) == []
    assert changed(text, text.replace("lazytpu.neg", "lazytpu.abs")) == [
        f"- %q_1 = lazytpu.neg %a_1 : {M}",
        f"+ %q_1 = lazytpu.abs %a_1 : {M}",
        f"- lazytpu.yield %q_1 : {M}",
        f"+ lazytpu.yield %q_1 : {M}",
    ]
    run_pipeline(module, passes="canonicalize,dce", verify=True)  # the limit enters the loop
    lines = changed(text, print_module(module))
    assert lines
    assert all("lazytpu.exp" not in line and "lazytpu.if" not in line for line in lines)


def test_products_in_regions_are_products_of_the_program() -> None:
    module = read_module(stablehlo_text(emit(parse_module(KNOWN))))
    assert [product.flops for product in module.products] == [FLOPS, FLOPS]
    assert len(module.results) == 1
