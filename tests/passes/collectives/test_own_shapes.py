"""Collectives of flat buffers, split into one for each large part. tests/lowering/test_collectives.py compares the
results of the devices before and after."""

from __future__ import annotations

import pytest

from lazytpu.ir.text import print_module
from lazytpu.passes.pipeline import for_target, run_pipeline
from lazytpu.passes.target import Target
from tests.passes.modules import keeps, parse_main, rewrites

PASS = "own-shapes{part_bytes=32}"
G = "[[0, 2], [1, 3]]"
ARGUMENTS = "%w : tensor<4x2xf32>, %c : tensor<2xf32>, %d : tensor<3xf32>"
BUFFER = f"""
    %flat = lazytpu.reshape %w : (tensor<4x2xf32>) -> tensor<8xf32>
    %buffer = lazytpu.concatenate %c, %flat, %d dim = 0
         : (tensor<2xf32>, tensor<8xf32>, tensor<3xf32>) -> tensor<13xf32>
    %row = lazytpu.reshape %buffer : (tensor<13xf32>) -> tensor<1x13xf32>
    %all = lazytpu.all_gather %row dim = 0 groups = {G} : (tensor<1x13xf32>) -> tensor<2x13xf32>
"""


def cut(name: str, start: int, end: int, of: str = "%all", rows: int = 2) -> str:
    """Return a slice of columns of a buffer of 13 columns."""
    return (
        f"{name} = lazytpu.slice {of} starts = [0, {start}] limits = [{rows}, {end}] strides = [1, 1] "
        f": (tensor<{rows}x13xf32>) -> tensor<{rows}x{end - start}xf32>\n"
    )


def barrier(name: str, shape: str) -> str:
    """Return an op that reads a value again, after `%after`."""
    return f"lazytpu.template read_again %{name}, %after : (tensor<{shape}xf32>, tensor<f32>) -> tensor<{shape}xf32>"


AGAIN = f"%again = {barrier('buffer', '13')}\n%row"


def test_a_large_parameter_is_gathered_in_its_own_shape_and_small_ones_together() -> None:
    rewrites(
        PASS,
        ARGUMENTS,
        f"""{BUFFER}
        {cut("%0", 0, 2)}{cut("%1", 2, 10)}{cut("%2", 10, 13)}
        %weight = lazytpu.reshape %1 : (tensor<2x8xf32>) -> tensor<8x2xf32>
        func.return %0, %weight, %2 : tensor<2x2xf32>, tensor<8x2xf32>, tensor<2x3xf32>""",
        f"""
        %weight = lazytpu.all_gather %w dim = 0 groups = {G} : (tensor<4x2xf32>) -> tensor<8x2xf32>
        %0 = lazytpu.concatenate %c, %d dim = 0 : (tensor<2xf32>, tensor<3xf32>) -> tensor<5xf32>
        %1 = lazytpu.reshape %0 : (tensor<5xf32>) -> tensor<1x5xf32>
        %2 = lazytpu.all_gather %1 dim = 0 groups = {G} : (tensor<1x5xf32>) -> tensor<2x5xf32>
        %3 = lazytpu.slice %2 starts = [0, 0] limits = [2, 2] strides = [1, 1] : (tensor<2x5xf32>) -> tensor<2x2xf32>
        %4 = lazytpu.slice %2 starts = [0, 2] limits = [2, 5] strides = [1, 1] : (tensor<2x5xf32>) -> tensor<2x3xf32>
        func.return %3, %weight, %4 : tensor<2x2xf32>, tensor<8x2xf32>, tensor<2x3xf32>""",
    )


def test_a_conversion_is_repeated_in_the_own_shape() -> None:
    rewrites(
        "own-shapes{part_bytes=16}",
        "%w : tensor<4x2xf32>, %c : tensor<2xbf16>",
        f"""
        %flat = lazytpu.reshape %w : (tensor<4x2xf32>) -> tensor<8xf32>
        %half = lazytpu.convert %flat : (tensor<8xf32>) -> tensor<8xbf16>
        %buffer = lazytpu.concatenate %half, %c dim = 0 : (tensor<8xbf16>, tensor<2xbf16>) -> tensor<10xbf16>
        %row = lazytpu.reshape %buffer : (tensor<10xbf16>) -> tensor<1x10xbf16>
        %all = lazytpu.all_gather %row dim = 0 groups = {G} : (tensor<1x10xbf16>) -> tensor<2x10xbf16>
        %0 = lazytpu.slice %all starts = [0, 0] limits = [2, 8] strides = [1, 1]
             : (tensor<2x10xbf16>) -> tensor<2x8xbf16>
        func.return %0 : tensor<2x8xbf16>""",
        f"""
        %0 = lazytpu.convert %w : (tensor<4x2xf32>) -> tensor<4x2xbf16>
        %1 = lazytpu.all_gather %0 dim = 0 groups = {G} : (tensor<4x2xbf16>) -> tensor<8x2xbf16>
        %2 = lazytpu.reshape %1 : (tensor<8x2xbf16>) -> tensor<2x8xbf16>
        func.return %2 : tensor<2x8xbf16>""",
    )


def test_a_second_gather_stays_behind_its_barrier() -> None:
    rewrites(
        PASS,
        f"{ARGUMENTS}, %after : tensor<f32>",
        f"""{BUFFER.replace("reshape %buffer", "reshape %again").replace("%row", AGAIN, 1)}
        {cut("%0", 0, 2)}{cut("%1", 2, 10)}
        %weight = lazytpu.reshape %1 : (tensor<2x8xf32>) -> tensor<8x2xf32>
        func.return %0, %weight : tensor<2x2xf32>, tensor<8x2xf32>""",
        f"""
        %0 = {barrier("w", "4x2")}
        %weight = lazytpu.all_gather %0 dim = 0 groups = {G} : (tensor<4x2xf32>) -> tensor<8x2xf32>
        %1 = lazytpu.concatenate %c, %d dim = 0 : (tensor<2xf32>, tensor<3xf32>) -> tensor<5xf32>
        %2 = {barrier("1", "5")}
        %3 = lazytpu.reshape %2 : (tensor<5xf32>) -> tensor<1x5xf32>
        %4 = lazytpu.all_gather %3 dim = 0 groups = {G} : (tensor<1x5xf32>) -> tensor<2x5xf32>
        %5 = lazytpu.slice %4 starts = [0, 0] limits = [2, 2] strides = [1, 1] : (tensor<2x5xf32>) -> tensor<2x2xf32>
        func.return %5, %weight : tensor<2x2xf32>, tensor<8x2xf32>""",
    )


GRADIENTS = f"""
    %flat = lazytpu.reshape %w : (tensor<4x2xf32>) -> tensor<2x4xf32>
    %few = lazytpu.reshape %c : (tensor<2xf32>) -> tensor<2x1xf32>
    %rows = lazytpu.concatenate %few, %flat dim = 1 : (tensor<2x1xf32>, tensor<2x4xf32>) -> tensor<2x5xf32>
    %sums = lazytpu.reduce_scatter add %rows dim = 0 groups = {G} : (tensor<2x5xf32>) -> tensor<1x5xf32>
"""


def test_a_large_gradient_is_scattered_in_its_own_shape_through_the_ops_behind_it() -> None:
    rewrites(
        "own-shapes{part_bytes=16}",
        f"{ARGUMENTS}, %count : tensor<f32>",
        f"""{GRADIENTS}
        %line = lazytpu.reshape %sums : (tensor<1x5xf32>) -> tensor<5xf32>
        %counts = lazytpu.broadcast_in_dim %count dims = [] : (tensor<f32>) -> tensor<5xf32>
        %mean = lazytpu.div %line, %counts : tensor<5xf32>
        %0 = lazytpu.slice %mean starts = [1] limits = [5] strides = [1] : (tensor<5xf32>) -> tensor<4xf32>
        %1 = lazytpu.slice %mean starts = [0] limits = [1] strides = [1] : (tensor<5xf32>) -> tensor<1xf32>
        func.return %0, %1 : tensor<4xf32>, tensor<1xf32>""",
        f"""
        %few = lazytpu.reshape %c : (tensor<2xf32>) -> tensor<2x1xf32>
        %0 = lazytpu.reduce_scatter add %w dim = 0 groups = {G} : (tensor<4x2xf32>) -> tensor<2x2xf32>
        %1 = lazytpu.reshape %0 : (tensor<2x2xf32>) -> tensor<1x4xf32>
        %2 = lazytpu.reduce_scatter add %few dim = 0 groups = {G} : (tensor<2x1xf32>) -> tensor<1x1xf32>
        %3 = lazytpu.reshape %1 : (tensor<1x4xf32>) -> tensor<4xf32>
        %4 = lazytpu.broadcast_in_dim %count dims = [] : (tensor<f32>) -> tensor<4xf32>
        %5 = lazytpu.div %3, %4 : tensor<4xf32>
        %6 = lazytpu.reshape %2 : (tensor<1x1xf32>) -> tensor<1xf32>
        %7 = lazytpu.broadcast_in_dim %count dims = [] : (tensor<f32>) -> tensor<1xf32>
        %8 = lazytpu.div %6, %7 : tensor<1xf32>
        func.return %5, %8 : tensor<4xf32>, tensor<1xf32>""",
    )


def test_a_buffer_of_gradients_that_the_caller_keeps_is_put_together() -> None:
    module = parse_main(
        ARGUMENTS,
        f"""{GRADIENTS}
        %0 = lazytpu.slice %sums starts = [0, 1] limits = [1, 5] strides = [1, 1] : (tensor<1x5xf32>) -> tensor<1x4xf32>
        func.return %sums, %0 : tensor<1x5xf32>, tensor<1x4xf32>""",
    )
    run_pipeline(module, passes="own-shapes{part_bytes=16}", verify=True)
    text = print_module(module)
    assert text.count("reduce_scatter") == 2
    assert "lazytpu.reduce_scatter add %w" in text
    assert "-> tensor<1x5xf32>\n    func.return" in text


BUCKET = """
    %zero = lazytpu.constant 0 : tensor<i32>
    %two = lazytpu.constant {second} : tensor<i32>
    %flat = lazytpu.reshape %w : (tensor<4x2xf32>) -> tensor<8xf32>
    %begun = lazytpu.dynamic_update_slice %old, %c, %zero
           : (tensor<10xf32>, tensor<2xf32>, tensor<i32>) -> tensor<10xf32>
    %full = lazytpu.dynamic_update_slice %begun, %flat, %two
          : (tensor<10xf32>, tensor<8xf32>, tensor<i32>) -> tensor<10xf32>
    %sum = lazytpu.all_reduce add %full groups = [[0, 1]] : (tensor<10xf32>) -> tensor<10xf32>
    %0 = lazytpu.slice %sum starts = [2] limits = [10] strides = [1] : (tensor<10xf32>) -> tensor<8xf32>
    %1 = lazytpu.reshape %0 : (tensor<8xf32>) -> tensor<4x2xf32>
    func.return %1 : tensor<4x2xf32>
"""
OLD = "%old : tensor<10xf32>, %w : tensor<4x2xf32>, %c : tensor<2xf32>"


def test_a_bucket_that_is_written_part_by_part_is_reduced_in_parts() -> None:
    module = parse_main(OLD, BUCKET.format(second=2))
    run_pipeline(module, passes=PASS, verify=True)
    text = print_module(module)
    assert "lazytpu.all_reduce add %w groups" in text
    assert "dynamic_update_slice" not in text


STAYS = {
    "a row of three dimensions": (
        "%w : tensor<4x2xf32>, %c : tensor<4x2xf32>",
        f"""
        %0 = lazytpu.reshape %w : (tensor<4x2xf32>) -> tensor<8xf32>
        %1 = lazytpu.reshape %c : (tensor<4x2xf32>) -> tensor<8xf32>
        %buffer = lazytpu.concatenate %0, %1 dim = 0 : (tensor<8xf32>, tensor<8xf32>) -> tensor<16xf32>
        %row = lazytpu.reshape %buffer : (tensor<16xf32>) -> tensor<1x2x8xf32>
        %all = lazytpu.all_gather %row dim = 0 groups = {G} : (tensor<1x2x8xf32>) -> tensor<2x2x8xf32>
        %2 = lazytpu.slice %all starts = [0, 0, 0] limits = [2, 2, 4] strides = [1, 1, 1]
             : (tensor<2x2x8xf32>) -> tensor<2x2x4xf32>
        %3 = lazytpu.slice %all starts = [0, 0, 0] limits = [2, 2, 8] strides = [1, 1, 1]
             : (tensor<2x2x8xf32>) -> tensor<2x2x8xf32>
        func.return %2, %3 : tensor<2x2x4xf32>, tensor<2x2x8xf32>""",
    ),
    "a slice of nothing": (
        "%w : tensor<4x2xf32>, %c : tensor<4x2xf32>",
        f"""
        %0 = lazytpu.reshape %w : (tensor<4x2xf32>) -> tensor<8xf32>
        %1 = lazytpu.reshape %c : (tensor<4x2xf32>) -> tensor<8xf32>
        %buffer = lazytpu.concatenate %0, %1 dim = 0 : (tensor<8xf32>, tensor<8xf32>) -> tensor<16xf32>
        %row = lazytpu.reshape %buffer : (tensor<16xf32>) -> tensor<1x16xf32>
        %all = lazytpu.all_gather %row dim = 0 groups = {G} : (tensor<1x16xf32>) -> tensor<2x16xf32>
        %2 = lazytpu.slice %all starts = [0, 0] limits = [2, 8] strides = [1, 1]
             : (tensor<2x16xf32>) -> tensor<2x8xf32>
        %3 = lazytpu.slice %all starts = [0, 8] limits = [2, 16] strides = [1, 1]
             : (tensor<2x16xf32>) -> tensor<2x8xf32>
        %4 = lazytpu.slice %all starts = [0, 16] limits = [2, 16] strides = [1, 1]
             : (tensor<2x16xf32>) -> tensor<2x0xf32>
        func.return %2, %3, %4 : tensor<2x8xf32>, tensor<2x8xf32>, tensor<2x0xf32>""",
    ),
    "a bucket that keeps an old element": (OLD, BUCKET.format(second=1)),
    "no part is large enough": (ARGUMENTS, f"{BUFFER}{cut('%0', 0, 2)}func.return %0 : tensor<2x2xf32>"),
    "a slice of two parts": (ARGUMENTS, f"{BUFFER}{cut('%0', 0, 10)}func.return %0 : tensor<2x10xf32>"),
    "a part and half of it": (
        ARGUMENTS,
        f"{BUFFER}{cut('%0', 2, 10)}{cut('%1', 2, 6)}func.return %0, %1 : tensor<2x8xf32>, tensor<2x4xf32>",
    ),
    "a slice of one device's rows": (
        ARGUMENTS,
        f"""{BUFFER}
        %0 = lazytpu.slice %all starts = [0, 2] limits = [1, 10] strides = [1, 1]
             : (tensor<2x13xf32>) -> tensor<1x8xf32>
        func.return %0 : tensor<1x8xf32>""",
    ),
    "another use of the buffer": (
        ARGUMENTS,
        f"{BUFFER}{cut('%0', 2, 10)}func.return %0, %all : tensor<2x8xf32>, tensor<2x13xf32>",
    ),
    "rows that do not divide among the devices": (
        "%w : tensor<3x4xf32>, %c : tensor<2xf32>",
        f"""
        %flat = lazytpu.reshape %w : (tensor<3x4xf32>) -> tensor<2x6xf32>
        %few = lazytpu.reshape %c : (tensor<2xf32>) -> tensor<2x1xf32>
        %rows = lazytpu.concatenate %few, %flat dim = 1 : (tensor<2x1xf32>, tensor<2x6xf32>) -> tensor<2x7xf32>
        %sums = lazytpu.reduce_scatter add %rows dim = 0 groups = {G} : (tensor<2x7xf32>) -> tensor<1x7xf32>
        %0 = lazytpu.slice %sums starts = [0, 1] limits = [1, 7] strides = [1, 1] : (tensor<1x7xf32>) -> tensor<1x6xf32>
        func.return %0 : tensor<1x6xf32>""",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_other_buffers_stay(case: str) -> None:
    keeps("own-shapes{part_bytes=24}", *STAYS[case])


def test_the_pass_runs_for_tpus() -> None:
    assert "own-shapes" in for_target(Target("tpu", "v6e"))
    assert "own-shapes" not in for_target(Target("cpu"))
