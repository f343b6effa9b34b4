"""The estimated compile cost of a module."""

from __future__ import annotations

import pytest

from lazytpu.engine.compiling.estimate import RUNS, Work, work
from lazytpu.ir.text import parse_module

T = "tensor<4x4xf32>"
CONTRACT = "lhs_contract = [1] rhs_contract = [0] precision = default"
DOT = f"%{{0}} = lazytpu.dot_general %{{1}}, %0 {CONTRACT} : ({T}, {T}) -> {T}"
EXP = f"%{{0}} = lazytpu.exp %{{1}} : {T}"


def of(body: str, arguments: str = f"%0 : {T}") -> Work:
    return work(parse_module(f"func.func @main({arguments}) {{\n{body}\nfunc.return\n}}"))


def chain(op: str, count: int) -> Work:
    return of("\n".join(op.format(i + 1, i) for i in range(count)))


def test_estimate_is_linear_in_the_number_of_ops() -> None:
    single, double, many = chain(EXP, 1), chain(EXP, 2), chain(EXP, 101)
    assert many.full - single.full == pytest.approx(100 * (double.full - single.full))
    assert 0 < many.quick < many.full


def test_dot_costs_more_than_elementwise_op() -> None:
    assert chain(DOT, 20).full > chain(EXP, 20).full


def test_quick_convolution_runs_slower_by_its_multiplications() -> None:
    ones = ("strides", "low", "high", "lhs_dilation", "rhs_dilation")
    window = " ".join(f"{name} = [1, 1]" for name in ones) + " window_reversal = [0, 0]"
    x, w = "tensor<2x4x8x8xf32>", "tensor<16x4x3x3xf32>"
    y = "tensor<2x16x8x8xf32>"
    conv = f'%1 = lazytpu.convolution %0, %w {window} layout = "NC01,OI01,NC01" precision = default : ({x}, {w}) -> {y}'
    copied = of(f"%1 = lazytpu.exp %0 : {y}", f"%0 : {y}")
    assert of(conv, f"%0 : {x}, %w : {w}").slower == pytest.approx(copied.slower * 4 * 9 * 0.8 / 1.5)


@pytest.mark.parametrize(("limit", "runs"), [("10", 10), ("%n", RUNS)])
def test_loop_body_is_compiled_once_and_run_many_times(limit: str, runs: int) -> None:
    i = "tensor<i32>"
    loop = f"""%z = lazytpu.constant 0 : {i}
        %one = lazytpu.constant 1 : {i}
        %limit = {f"lazytpu.constant {limit}" if limit.isdigit() else "lazytpu.neg %n"} : {i}
        %i, %y = lazytpu.while %z, %0, %limit, %one carried = 2 : ({i}, {T}, {i}, {i}) -> ({i}, {T})
        while(%a, %b, %c, %d) {{
          %g = lazytpu.compare LT %a, %c : ({i}, {i}) -> tensor<i1>
          lazytpu.yield %g : tensor<i1>
        }} do(%a, %b, %c, %d) {{
          %k = lazytpu.add %a, %d : {i}
          %e = lazytpu.exp %b : {T}
          lazytpu.yield %k, %e : {i}, {T}
        }}"""
    estimate = of(loop, f"%0 : {T}, %n : {i}")
    once, nothing = chain(EXP, 1), chain(EXP, 0)
    assert estimate.full > once.full
    assert estimate.slower > 0.9 * runs * (once.slower - nothing.slower)
    assert estimate.slower < 2 * runs * once.slower
