"""All-reduces with results that each device uses only in part. tests/lowering/test_collectives.py compares the results
of the devices before and after."""

from __future__ import annotations

import pytest

from tests.passes.modules import keeps, rewrites

PASS = "shard-reductions"
G = "[[0, 2], [1, 3]]"
START = f"""
    %two = lazytpu.constant 2 : tensor<i32>
    %zero = lazytpu.constant 0 : tensor<i32>
    %rank = lazytpu.group_rank groups = {G} : tensor<i32>
    %start = lazytpu.mul %rank, %two : tensor<i32>
"""
CUT = "(tensor<4x3xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>"
SUM = f"lazytpu.all_reduce add %g groups = {G} : (tensor<4x3xf32>) -> tensor<4x3xf32>"
PART = f"lazytpu.reduce_scatter add %g dim = 0 groups = {G} : (tensor<4x3xf32>) -> tensor<2x3xf32>"


def test_own_part_of_a_sum_is_reduce_scattered() -> None:
    rewrites(
        PASS,
        "%g : tensor<4x3xf32>",
        f"""%sum = {SUM}{START}
        %part = lazytpu.dynamic_slice %sum, %start, %zero sizes = [2, 3] : {CUT}
        func.return %part : tensor<2x3xf32>""",
        f"%part = {PART}{START}func.return %part : tensor<2x3xf32>",
    )


def test_ops_in_between_are_sharded() -> None:
    rewrites(
        PASS,
        "%g : tensor<4x3xf32>, %w : tensor<4x3xf32>, %lr : tensor<f32>",
        f"""{START}
        %half = lazytpu.constant 0.5 : tensor<4x3xf32>
        %rate = lazytpu.broadcast_in_dim %lr dims = [] : (tensor<f32>) -> tensor<4x3xf32>
        %sum = {SUM}
        %mean = lazytpu.mul %sum, %half : tensor<4x3xf32>
        %step = lazytpu.mul %mean, %rate : tensor<4x3xf32>
        %new = lazytpu.sub %w, %step : tensor<4x3xf32>
        %a = lazytpu.dynamic_slice %new, %start, %zero sizes = [2, 3] : {CUT}
        %b = lazytpu.dynamic_slice %mean, %start, %zero sizes = [2, 3] : {CUT}
        func.return %a, %b : tensor<2x3xf32>, tensor<2x3xf32>""",
        f"""{START}
        %half = lazytpu.constant 0.5 : tensor<4x3xf32>
        %rate = lazytpu.broadcast_in_dim %lr dims = [] : (tensor<f32>) -> tensor<4x3xf32>
        %0 = {PART}
        %1 = lazytpu.dynamic_slice %w, %start, %zero sizes = [2, 3] : {CUT}
        %2 = lazytpu.constant 0.5 : tensor<2x3xf32>
        %b = lazytpu.mul %0, %2 : tensor<2x3xf32>
        %3 = lazytpu.broadcast_in_dim %lr dims = [] : (tensor<f32>) -> tensor<2x3xf32>
        %4 = lazytpu.mul %b, %3 : tensor<2x3xf32>
        %a = lazytpu.sub %1, %4 : tensor<2x3xf32>
        func.return %a, %b : tensor<2x3xf32>, tensor<2x3xf32>""",
    )


def test_bucket_keeps_the_operands_that_all_devices_need() -> None:
    pair = "(tensor<4x3xf32>, tensor<4x3xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>)"
    rewrites(
        PASS,
        "%g : tensor<4x3xf32>, %h : tensor<4x3xf32>",
        f"""{START}
        %sum, %other = lazytpu.all_reduce add %g, %h groups = {G} : {pair}
        %part = lazytpu.dynamic_slice %sum, %start, %zero sizes = [2, 3] : {CUT}
        func.return %part, %other : tensor<2x3xf32>, tensor<4x3xf32>""",
        f"""{START}
        %part = {PART}
        %other = lazytpu.all_reduce add %h groups = {G} : (tensor<4x3xf32>) -> tensor<4x3xf32>
        func.return %part, %other : tensor<2x3xf32>, tensor<4x3xf32>""",
    )


STAYS = {
    "another use": f"""
        %part = lazytpu.dynamic_slice %sum, %start, %zero sizes = [2, 3] : {CUT}
        func.return %part, %sum : tensor<2x3xf32>, tensor<4x3xf32>""",
    "a use that mixes elements": f"""
        %turned = lazytpu.reverse %sum dims = [0] : tensor<4x3xf32>
        %part = lazytpu.dynamic_slice %turned, %start, %zero sizes = [2, 3] : {CUT}
        func.return %part : tensor<2x3xf32>""",
    "another device's part": f"""
        %next = lazytpu.add %start, %two : tensor<i32>
        %part = lazytpu.dynamic_slice %sum, %next, %zero sizes = [2, 3] : {CUT}
        func.return %part : tensor<2x3xf32>""",
    "the ranks of other groups": f"""
        %place = lazytpu.group_rank groups = [[0, 1], [2, 3]] : tensor<i32>
        %there = lazytpu.mul %place, %two : tensor<i32>
        %part = lazytpu.dynamic_slice %sum, %there, %zero sizes = [2, 3] : {CUT}
        func.return %part : tensor<2x3xf32>""",
    "parts of another size": """
        %row = lazytpu.dynamic_slice %sum, %start, %zero sizes = [1, 3]
             : (tensor<4x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
        func.return %row : tensor<1x3xf32>""",
}


@pytest.mark.parametrize("use", STAYS)
def test_other_all_reduces_stay(use: str) -> None:
    keeps(PASS, "%g : tensor<4x3xf32>", f"{START}%sum = {SUM}{STAYS[use]}")
