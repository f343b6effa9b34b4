"""dynamic_slice and dynamic_update_slice at constant starts."""

from __future__ import annotations

import pytest

from tests.passes.modules import keeps, rewrites

STARTS = "%a = lazytpu.constant {0} : tensor<i32>\n%b = lazytpu.constant {1} : tensor<i32>\n"
UPDATE = """
    %u0 = lazytpu.dynamic_update_slice %x, %u, %a, %b
        : (tensor<4x6xf32>, tensor<2x3xf32>, tensor<i32>, tensor<i32>) -> tensor<4x6xf32>
"""
SLICE = """
    %s = lazytpu.slice {0} starts = [{1}] limits = [{2}] strides = [1, 1] : ({3}) -> {4}
    func.return %s : {4}"""
ARGUMENTS = "%x : tensor<4x6xf32>, %u : tensor<2x3xf32>"


@pytest.mark.parametrize(
    ("starts", "begin", "end"),
    [((1, 2), "1, 2", "3, 5"), ((-1, 0), "0, 0", "2, 3"), ((9, 9), "2, 3", "4, 6")],
)
def test_dynamic_slice_at_constants_is_clamped(starts: tuple[int, int], begin: str, end: str) -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<4x6xf32>",
        STARTS.format(*starts)
        + """
        %0 = lazytpu.dynamic_slice %x, %a, %b sizes = [2, 3]
             : (tensor<4x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
        func.return %0 : tensor<2x3xf32>""",
        SLICE.format("%x", begin, end, "tensor<4x6xf32>", "tensor<2x3xf32>").replace("%s", "%0"),
    )


def test_dynamic_slice_at_a_run_time_start_stays() -> None:
    keeps(
        "canonicalize",
        "%x : tensor<4xf32>, %i : tensor<i64>",
        """
        %0 = lazytpu.dynamic_slice %x, %i sizes = [2] : (tensor<4xf32>, tensor<i64>) -> tensor<2xf32>
        func.return %0 : tensor<2xf32>""",
    )


def test_update_of_the_whole() -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<4xf32>, %u : tensor<4xf32>, %i : tensor<i64>",
        """
        %0 = lazytpu.dynamic_update_slice %x, %u, %i : (tensor<4xf32>, tensor<4xf32>, tensor<i64>) -> tensor<4xf32>
        func.return %0 : tensor<4xf32>""",
        "func.return %u : tensor<4xf32>",
    )


def test_second_update_of_the_same_place_wins() -> None:
    kind = "(tensor<4xf32>, tensor<2xf32>, tensor<i64>) -> tensor<4xf32>"
    rewrites(
        "canonicalize",
        "%x : tensor<4xf32>, %u : tensor<2xf32>, %v : tensor<2xf32>, %i : tensor<i64>",
        f"""
        %0 = lazytpu.dynamic_update_slice %x, %u, %i : {kind}
        %1 = lazytpu.dynamic_update_slice %0, %v, %i : {kind}
        func.return %1 : tensor<4xf32>""",
        f"%0 = lazytpu.dynamic_update_slice %x, %v, %i : {kind}\nfunc.return %0 : tensor<4xf32>",
    )


def test_second_update_of_another_place_stays() -> None:
    kind = "(tensor<4xf32>, tensor<2xf32>, tensor<i64>) -> tensor<4xf32>"
    keeps(
        "canonicalize",
        "%x : tensor<4xf32>, %u : tensor<2xf32>, %i : tensor<i64>, %j : tensor<i64>",
        f"""
        %0 = lazytpu.dynamic_update_slice %x, %u, %i : {kind}
        %1 = lazytpu.dynamic_update_slice %0, %u, %j : {kind}
        func.return %1 : tensor<4xf32>""",
    )


def test_slice_of_the_update_reads_the_update() -> None:
    rewrites(
        "canonicalize",
        ARGUMENTS,
        STARTS.format(1, 2) + UPDATE + SLICE.format("%u0", "1, 2", "3, 5", "tensor<4x6xf32>", "tensor<2x3xf32>"),
        "func.return %u : tensor<2x3xf32>",
    )


def test_slice_inside_the_update_reads_the_update() -> None:
    rewrites(
        "canonicalize",
        ARGUMENTS,
        STARTS.format(1, 2) + UPDATE + SLICE.format("%u0", "2, 2", "3, 4", "tensor<4x6xf32>", "tensor<1x2xf32>"),
        SLICE.format("%u", "1, 0", "2, 2", "tensor<2x3xf32>", "tensor<1x2xf32>"),
    )


def test_slice_outside_the_update_reads_the_original() -> None:
    rewrites(
        "canonicalize",
        ARGUMENTS,
        STARTS.format(1, 2) + UPDATE + SLICE.format("%u0", "0, 0", "4, 2", "tensor<4x6xf32>", "tensor<4x2xf32>"),
        SLICE.format("%x", "0, 0", "4, 2", "tensor<4x6xf32>", "tensor<4x2xf32>"),
    )


def test_slice_across_the_edge_of_the_update_stays() -> None:
    keeps(
        "canonicalize",
        ARGUMENTS,
        STARTS.format(1, 2) + UPDATE + SLICE.format("%u0", "0, 2", "2, 3", "tensor<4x6xf32>", "tensor<2x1xf32>"),
    )


def test_iota_of_one() -> None:
    rewrites(
        "canonicalize",
        "",
        "%0 = lazytpu.iota dim = 1 : tensor<3x1xi32>\nfunc.return %0 : tensor<3x1xi32>",
        "%0 = lazytpu.constant 0 : tensor<3x1xi32>\nfunc.return %0 : tensor<3x1xi32>",
    )


@pytest.mark.parametrize(
    ("direction", "number", "result"),
    [
        ("GE", 0, "true"),
        ("GT", 0, None),
        ("LT", 5, "true"),
        ("LT", 4, None),
        ("LE", 4, "true"),
        ("LT", 0, "false"),
        ("GE", 5, "false"),
        ("EQ", 5, "false"),
        ("EQ", 2, None),
        ("NE", -1, "true"),
        ("NE", 4, None),
    ],
)
def test_iota_compared_with_a_number(direction: str, number: int, result: str | None) -> None:
    body = f"""
        %0 = lazytpu.iota dim = 0 : tensor<5x2xi64>
        %1 = lazytpu.constant {number} : tensor<5x2xi64>
        %2 = lazytpu.compare {direction} %0, %1 : (tensor<5x2xi64>, tensor<5x2xi64>) -> tensor<5x2xi1>
        func.return %2 : tensor<5x2xi1>"""
    if result is None:
        keeps("canonicalize", "", body)
    else:
        constant = f"%0 = lazytpu.constant {result} : tensor<5x2xi1>\nfunc.return %0 : tensor<5x2xi1>"
        rewrites("canonicalize", "", body, constant)


def test_iota_converted() -> None:
    rewrites(
        "canonicalize",
        "",
        """
        %0 = lazytpu.iota dim = 0 : tensor<200xi64>
        %1 = lazytpu.convert %0 : (tensor<200xi64>) -> tensor<200xi32>
        func.return %1 : tensor<200xi32>""",
        "%0 = lazytpu.iota dim = 0 : tensor<200xi32>\nfunc.return %0 : tensor<200xi32>",
    )


@pytest.mark.parametrize(("source", "target"), [("i64", "i8"), ("i8", "i64"), ("i64", "f8E5M2"), ("i64", "i1")])
def test_iota_converted_to_a_dtype_that_is_too_small_stays(source: str, target: str) -> None:
    keeps(
        "canonicalize",
        "",
        f"""
        %0 = lazytpu.iota dim = 0 : tensor<200x{source}>
        %1 = lazytpu.convert %0 : (tensor<200x{source}>) -> tensor<200x{target}>
        func.return %1 : tensor<200x{target}>""",
    )
