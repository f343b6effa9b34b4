"""reduce."""

from __future__ import annotations

from typing import Any

import pytest

from tests.passes.modules import keeps, rewrites


def once(kind: str, dtype: str) -> str:
    return f"""
    %0 = lazytpu.reduce {kind} %x dims = [1] : (tensor<4x1x{dtype}>) -> tensor<4x{dtype}>
    func.return %0 : tensor<4x{dtype}>"""


def twice(kind: str, dtype: str) -> str:
    return f"""
    %0 = lazytpu.reduce {kind} %x dims = [1] : (tensor<2x3x4x{dtype}>) -> tensor<2x4x{dtype}>
    %1 = lazytpu.reduce {kind} %0 dims = [1] : (tensor<2x4x{dtype}>) -> tensor<2x{dtype}>
    func.return %1 : tensor<2x{dtype}>"""


@pytest.mark.parametrize(("kind", "dtype"), [("max", "f32"), ("add", "i32"), ("or", "i1")])
def test_reduction_of_dimensions_of_size_1(kind: str, dtype: str) -> None:
    rewrites(
        "canonicalize",
        f"%x : tensor<4x1x{dtype}>",
        once(kind, dtype),
        f"""
        %0 = lazytpu.reshape %x : (tensor<4x1x{dtype}>) -> tensor<4x{dtype}>
        func.return %0 : tensor<4x{dtype}>""",
    )


def test_sum_of_one_float_stays() -> None:
    """0.0 + -0.0 is 0.0."""
    keeps("canonicalize", "%x : tensor<4x1xf32>", once("add", "f32"))


@pytest.mark.parametrize(("kind", "dtype"), [("min", "f32"), ("mul", "i32"), ("and", "i1")])
def test_reductions_that_compose(kind: str, dtype: str) -> None:
    rewrites(
        "canonicalize",
        f"%x : tensor<2x3x4x{dtype}>",
        twice(kind, dtype),
        f"""
        %0 = lazytpu.reduce {kind} %x dims = [1, 2] : (tensor<2x3x4x{dtype}>) -> tensor<2x{dtype}>
        func.return %0 : tensor<2x{dtype}>""",
    )


@pytest.mark.parametrize("kind", ["add", "mul"])
def test_sums_of_float_sums_stay(kind: str) -> None:
    keeps("canonicalize", "%x : tensor<2x3x4xbf16>", twice(kind, "bf16"))


def test_reductions_of_two_kinds_stay() -> None:
    keeps("canonicalize", "%x : tensor<2x3x4xf32>", twice("max", "f32").replace("max", "min", 1))


def test_reduction_of_a_transpose() -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<2x3x4xf32>",
        """
        %0 = lazytpu.transpose %x [2, 0, 1] : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
        %1 = lazytpu.reduce add %0 dims = [0] : (tensor<4x2x3xf32>) -> tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
        """
        %0 = lazytpu.reduce add %x dims = [2] : (tensor<2x3x4xf32>) -> tensor<2x3xf32>
        func.return %0 : tensor<2x3xf32>""",
    )


def test_reduction_of_a_transpose_that_reorders_stays() -> None:
    keeps(
        "canonicalize",
        "%x : tensor<2x3x4xf32>",
        """
        %0 = lazytpu.transpose %x [1, 0, 2] : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
        %1 = lazytpu.reduce add %0 dims = [2] : (tensor<3x2x4xf32>) -> tensor<3x2xf32>
        func.return %1 : tensor<3x2xf32>""",
    )


@pytest.mark.parametrize(
    ("kind", "dtype", "number"), [("and", "i1", "true"), ("max", "f32", "nan"), ("min", "i8", "-3")]
)
def test_reduction_of_equal_elements(kind: str, dtype: str, number: str) -> None:
    rewrites(
        "canonicalize",
        "",
        f"""
        %0 = lazytpu.constant {number} : tensor<700x3x{dtype}>
        %1 = lazytpu.reduce {kind} %0 dims = [0] : (tensor<700x3x{dtype}>) -> tensor<3x{dtype}>
        func.return %1 : tensor<3x{dtype}>""",
        f"%0 = lazytpu.constant {number} : tensor<3x{dtype}>\nfunc.return %0 : tensor<3x{dtype}>",
    )


def test_reduction_of_nothing_stays() -> None:
    keeps(
        "canonicalize",
        "",
        """
        %0 = lazytpu.constant 5.0 : tensor<0x3xf32>
        %1 = lazytpu.reduce max %0 dims = [0] : (tensor<0x3xf32>) -> tensor<3xf32>
        func.return %1 : tensor<3xf32>""",
    )


def one_hot(direction: str = "EQ", along: int = 1, zero: str = "0.0") -> str:
    return f"""
    %0 = lazytpu.iota dim = {along} : tensor<4x9xi32>
    %1 = lazytpu.broadcast_in_dim %t dims = [0] : (tensor<4xi32>) -> tensor<4x9xi32>
    %2 = lazytpu.compare {direction} %0, %1 : (tensor<4x9xi32>, tensor<4x9xi32>) -> tensor<4x9xi1>
    %3 = lazytpu.broadcast_in_dim %c dims = [0] : (tensor<4xbf16>) -> tensor<4x9xbf16>
    %4 = lazytpu.constant {zero} : tensor<4x9xbf16>
    %5 = lazytpu.select %2, %3, %4 : (tensor<4x9xi1>, tensor<4x9xbf16>, tensor<4x9xbf16>) -> tensor<4x9xbf16>
    %6 = lazytpu.convert %5 : (tensor<4x9xbf16>) -> tensor<4x9xf32>
    %7 = lazytpu.reduce add %6 dims = [1] : (tensor<4x9xf32>) -> tensor<4xf32>
    func.return %7 : tensor<4xf32>"""


def test_sum_of_one_hot_rows() -> None:
    """Exactly one element is nonzero if the target is in range; an element of -0.0 gives 0.0, like the sum."""
    rewrites(
        "canonicalize,cse",
        "%t : tensor<4xi32>, %c : tensor<4xbf16>",
        one_hot(),
        """
        %0 = lazytpu.constant 0 : tensor<4xi32>
        %1 = lazytpu.compare GE %t, %0 : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
        %2 = lazytpu.constant 9 : tensor<4xi32>
        %3 = lazytpu.compare LT %t, %2 : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
        %4 = lazytpu.and %1, %3 : tensor<4xi1>
        %5 = lazytpu.constant 0.0 : tensor<4xf32>
        %6 = lazytpu.convert %c : (tensor<4xbf16>) -> tensor<4xf32>
        %7 = lazytpu.add %6, %5 : tensor<4xf32>
        %8 = lazytpu.select %4, %7, %5 : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        func.return %8 : tensor<4xf32>""",
    )


@pytest.mark.parametrize("change", [{"direction": "NE"}, {"along": 0}, {"zero": "1.0"}, {"zero": "-0.0"}])
def test_sum_of_rows_that_are_not_one_hot_stays(change: dict[str, Any]) -> None:
    keeps("canonicalize", "%t : tensor<4xi32>, %c : tensor<4xbf16>", one_hot(**change))
