"""Compared values are computed once."""

from __future__ import annotations

import pytest

from lazytpu.ir.module import options_of
from lazytpu.ir.text import print_module
from lazytpu.passes.fusions.barriers import KEEP_BARRIERS
from lazytpu.passes.pipeline import for_target, run_pipeline
from lazytpu.passes.target import Target
from tests.passes.modules import parse_main

X, R, PLACE, P = "tensor<4x8xf32>", "tensor<4xf32>", "tensor<4xi64>", "tensor<4x8xi1>"
ARGUMENTS = f"%x : {X}, %y : {X}"


def barriers(body: str, arguments: str = ARGUMENTS) -> int:
    """Return the number of barriers that the pass sets; a second run sets none."""
    rewritten = parse_main(arguments, body)
    run_pipeline(rewritten, passes="keep-compared", verify=True)
    once = print_module(rewritten)
    run_pipeline(rewritten, passes="keep-compared", verify=True)
    assert print_module(rewritten) == once
    count = once.count("lazytpu.barrier")
    assert options_of(rewritten) == (KEEP_BARRIERS if count else {})
    return count


def test_largest_element_equals_itself() -> None:
    rewritten = parse_main(
        ARGUMENTS,
        f"""
        %0 = lazytpu.add %x, %y : {X}
        %1 = lazytpu.reduce max %0 dims = [1] : ({X}) -> {R}
        %2 = lazytpu.broadcast_in_dim %1 dims = [0] : ({R}) -> {X}
        %3 = lazytpu.compare EQ %0, %2 : ({X}, {X}) -> {P}
        func.return %3 : {P}""",
    )
    run_pipeline(rewritten, passes="keep-compared", verify=True)
    assert options_of(rewritten) == KEEP_BARRIERS
    rewritten.attributes.clear()
    expected = parse_main(
        ARGUMENTS,
        f"""
        %0 = lazytpu.add %x, %y : {X}
        %1 = lazytpu.barrier %0 : {X}
        %2 = lazytpu.reduce max %1 dims = [1] : ({X}) -> {R}
        %3 = lazytpu.broadcast_in_dim %2 dims = [0] : ({R}) -> {X}
        %4 = lazytpu.compare EQ %1, %3 : ({X}, {X}) -> {P}
        func.return %4 : {P}""",
    )
    assert print_module(rewritten) == print_module(expected)


def test_operand_of_argreduce_is_kept() -> None:
    argreduce = f"%v, %i = lazytpu.argreduce max %s dim = 1 : ({X}) -> ({R}, {PLACE})\nfunc.return %i : {PLACE}"
    assert barriers(f"%s = lazytpu.mul %x, %y : {X}\n{argreduce}") == 1
    assert barriers(argreduce.replace("%s", "%x")) == 0


def test_source_of_moved_values_is_kept() -> None:
    body = f"""
        %s = lazytpu.add %x, %y : {X}
        %t = lazytpu.transpose %s [1, 0] : ({X}) -> tensor<8x4xf32>
        %sin = lazytpu.sin %t : tensor<8x4xf32>
        %2 = lazytpu.compare GE %t, %sin : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<8x4xi1>
        func.return %2 : tensor<8x4xi1>"""
    assert barriers(body) == 1


@pytest.mark.parametrize(
    "compared",
    [
        "%2 = lazytpu.compare NE %s, %s",  # a test for NaN
        "%2 = lazytpu.compare GT %s, %zero",
        "%2 = lazytpu.compare GT %s, %y",
    ],
)
def test_comparisons_without_a_computed_value_need_no_barrier(compared: str) -> None:
    body = f"""
        %s = lazytpu.add %x, %y : {X}
        %zero = lazytpu.constant 0.0 : {X}
        {compared} : ({X}, {X}) -> {P}
        %3 = lazytpu.select %2, %s, %y : ({P}, {X}, {X}) -> {X}
        func.return %3 : {X}"""
    assert barriers(body) == 0


def test_values_with_one_use_need_no_barrier() -> None:
    body = f"""
        %s = lazytpu.add %x, %y : {X}
        %t = lazytpu.mul %x, %y : {X}
        %2 = lazytpu.compare GT %s, %t : ({X}, {X}) -> {P}
        func.return %2 : {P}"""
    assert barriers(body) == 0


def test_pass_is_for_the_cpu_only() -> None:
    assert "keep-compared" in for_target(Target("cpu")) and "keep-compared" not in for_target(Target("tpu"))
