"""What compiling costs, counted from a module."""

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


def test_it_grows_with_the_ops() -> None:
    one, two, many = chain(EXP, 1), chain(EXP, 2), chain(EXP, 101)
    assert many.full - one.full == pytest.approx(100 * (two.full - one.full))
    assert 0 < many.quick < many.full


def test_kinds_of_ops_have_weights_of_their_own() -> None:
    assert chain(DOT, 20).full > chain(EXP, 20).full


def test_a_convolution_that_is_written_out_runs_slower_by_its_products() -> None:
    ones = ("strides", "low", "high", "lhs_dilation", "rhs_dilation")
    window = " ".join(f"{name} = [1, 1]" for name in ones) + " window_reversal = [0, 0]"
    x, w = "tensor<2x4x8x8xf32>", "tensor<16x4x3x3xf32>"
    y = "tensor<2x16x8x8xf32>"
    conv = f'%1 = lazytpu.convolution %0, %w {window} layout = "NC01,OI01,NC01" precision = default : ({x}, {w}) -> {y}'
    copied = of(f"%1 = lazytpu.exp %0 : {y}", f"%0 : {y}")
    assert of(conv, f"%0 : {x}, %w : {w}").slower == pytest.approx(copied.slower * 4 * 9 * 0.8 / 1.5)


@pytest.mark.parametrize(("limit", "runs"), [("10", 10), ("%n", RUNS)])
def test_a_loop_is_compiled_once_and_runs_often(limit: str, runs: int) -> None:
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
    found = of(loop, f"%0 : {T}, %n : {i}")
    once, nothing = chain(EXP, 1), chain(EXP, 0)
    assert found.full > once.full
    assert found.slower > 0.9 * runs * (once.slower - nothing.slower)
    assert found.slower < 2 * runs * once.slower
