"""Common subexpression elimination."""

from __future__ import annotations

import pytest

from lazytpu.ir.text import print_module
from lazytpu.passes.pipeline import run_pipeline
from tests.passes.modules import keeps, parse_main, rewrites


def test_equal_chains_merge() -> None:
    rewrites(
        "cse",
        "%x : tensor<4xf32>",
        """
        %0 = lazytpu.exp %x : tensor<4xf32>
        %1 = lazytpu.neg %0 : tensor<4xf32>
        %2 = lazytpu.exp %x : tensor<4xf32>
        %3 = lazytpu.neg %2 : tensor<4xf32>
        %4 = lazytpu.sub %1, %3 : tensor<4xf32>
        func.return %4, %3 : tensor<4xf32>, tensor<4xf32>""",
        """
        %0 = lazytpu.exp %x : tensor<4xf32>
        %1 = lazytpu.neg %0 : tensor<4xf32>
        %2 = lazytpu.sub %1, %1 : tensor<4xf32>
        func.return %2, %1 : tensor<4xf32>, tensor<4xf32>""",
    )


@pytest.mark.parametrize("op", ["add", "mul"])
def test_operand_order_of_a_commutative_op_does_not_matter(op: str) -> None:
    rewrites(
        "cse",
        "%x : tensor<4xf32>, %y : tensor<4xf32>",
        f"""
        %0 = lazytpu.{op} %x, %y : tensor<4xf32>
        %1 = lazytpu.{op} %y, %x : tensor<4xf32>
        func.return %0, %1 : tensor<4xf32>, tensor<4xf32>""",
        f"%0 = lazytpu.{op} %x, %y : tensor<4xf32>\nfunc.return %0, %0 : tensor<4xf32>, tensor<4xf32>",
    )


def test_all_results_of_an_op_merge() -> None:
    kind = "(tensor<4x3xf32>) -> (tensor<4xf32>, tensor<4xi64>)"
    rewrites(
        "cse",
        "%x : tensor<4x3xf32>",
        f"""
        %0, %1 = lazytpu.argreduce max %x dim = 1 : {kind}
        %2, %3 = lazytpu.argreduce max %x dim = 1 : {kind}
        func.return %0, %3 : tensor<4xf32>, tensor<4xi64>""",
        f"""
        %0, %1 = lazytpu.argreduce max %x dim = 1 : {kind}
        func.return %0, %1 : tensor<4xf32>, tensor<4xi64>""",
    )


DIFFERENT = {
    "operands in the other order": """
        %0 = lazytpu.sub %x, %y : tensor<4xf32>
        %1 = lazytpu.sub %y, %x : tensor<4xf32>""",
    "properties": """
        %0 = lazytpu.constant 0.0 : tensor<4xf32>
        %1 = lazytpu.constant -0.0 : tensor<4xf32>""",
    "result types": """
        %2 = lazytpu.convert %x : (tensor<4xf32>) -> tensor<4xf64>
        %3 = lazytpu.convert %x : (tensor<4xf32>) -> tensor<4xbf16>
        %0 = lazytpu.convert %2 : (tensor<4xf64>) -> tensor<4xf32>
        %1 = lazytpu.convert %3 : (tensor<4xbf16>) -> tensor<4xf32>""",
    "a recompute mark": """
        %0 = lazytpu.exp %x : tensor<4xf32>
        %1 = lazytpu.exp %x {lazytpu.recompute = 1 : i64} : tensor<4xf32>""",
    "recompute marks": """
        %0 = lazytpu.exp %x {lazytpu.recompute = 2 : i64} : tensor<4xf32>
        %1 = lazytpu.exp %x {lazytpu.recompute = 1 : i64} : tensor<4xf32>""",
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_ops_that_differ_stay(difference: str) -> None:
    body = DIFFERENT[difference] + "\nfunc.return %0, %1 : tensor<4xf32>, tensor<4xf32>"
    keeps("cse", "%x : tensor<4xf32>, %y : tensor<4xf32>", body)


def test_ops_of_one_recomputation_merge() -> None:
    mark = "{lazytpu.recompute = 1 : i64}"
    rewrites(
        "cse",
        "%x : tensor<4xf32>",
        f"""
        %0 = lazytpu.exp %x {mark} : tensor<4xf32>
        %1 = lazytpu.exp %x {mark} : tensor<4xf32>
        func.return %0, %1 : tensor<4xf32>, tensor<4xf32>""",
        f"%0 = lazytpu.exp %x {mark} : tensor<4xf32>\nfunc.return %0, %0 : tensor<4xf32>, tensor<4xf32>",
    )


def test_random_bits_of_different_offsets_stay() -> None:
    bits = "(tensor<ui64>, tensor<ui64>) -> tensor<4xui32>"
    keeps(
        "cse",
        "%seed : tensor<ui64>, %a : tensor<ui64>, %b : tensor<ui64>",
        f"""
        %0 = lazytpu.random_bits %seed, %a : {bits}
        %1 = lazytpu.random_bits %seed, %b : {bits}
        func.return %0, %1 : tensor<4xui32>, tensor<4xui32>""",
    )


def test_first_source_line_stays() -> None:
    merged = parse_main(
        "%x : tensor<4xf32>",
        """
        %0 = lazytpu.exp %x : tensor<4xf32> loc("train.py":3:0)
        %1 = lazytpu.exp %x : tensor<4xf32> loc("train.py":7:0)
        func.return %0, %1 : tensor<4xf32>, tensor<4xf32>""",
    )
    run_pipeline(merged, passes="cse", verify=True)
    assert 'train.py":3' in print_module(merged)
    assert 'train.py":7' not in print_module(merged)
