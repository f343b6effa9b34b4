"""select, compare, and the parts of complex numbers."""

from __future__ import annotations

import pytest

from tests.passes.modules import keeps, rewrites

THREE = "%p : tensor<4xi1>, %x : tensor<4xf32>, %y : tensor<4xf32>"


@pytest.mark.parametrize(("pred", "chosen"), [("true", "%x"), ("false", "%y")])
@pytest.mark.parametrize("shape", ["", "4x"])
def test_select_by_a_constant(pred: str, chosen: str, shape: str) -> None:
    rewrites(
        "canonicalize",
        THREE,
        f"""
        %0 = lazytpu.constant {pred} : tensor<{shape}i1>
        %1 = lazytpu.select %0, %x, %y : (tensor<{shape}i1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        func.return %1 : tensor<4xf32>""",
        f"func.return {chosen} : tensor<4xf32>",
    )


def test_select_of_equal_branches() -> None:
    rewrites(
        "canonicalize",
        THREE,
        """
        %0 = lazytpu.select %p, %x, %x : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        func.return %0 : tensor<4xf32>""",
        "func.return %x : tensor<4xf32>",
    )


def test_select_by_not() -> None:
    rewrites(
        "canonicalize",
        THREE,
        """
        %0 = lazytpu.not %p : tensor<4xi1>
        %1 = lazytpu.select %0, %x, %y : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        func.return %1 : tensor<4xf32>""",
        """
        %0 = lazytpu.select %p, %y, %x : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        func.return %0 : tensor<4xf32>""",
    )


@pytest.mark.parametrize(
    ("on_true", "on_false", "after"),
    [
        ("true", "false", "func.return %p : tensor<4xi1>"),
        ("false", "true", "%0 = lazytpu.not %p : tensor<4xi1>\nfunc.return %0 : tensor<4xi1>"),
    ],
)
def test_select_of_booleans(on_true: str, on_false: str, after: str) -> None:
    rewrites(
        "canonicalize",
        THREE,
        f"""
        %0 = lazytpu.constant {on_true} : tensor<4xi1>
        %1 = lazytpu.constant {on_false} : tensor<4xi1>
        %2 = lazytpu.select %p, %0, %1 : tensor<4xi1>
        func.return %2 : tensor<4xi1>""",
        after,
    )


def test_select_of_select_by_the_same() -> None:
    rewrites(
        "canonicalize",
        THREE + ", %z : tensor<4xf32>",
        """
        %0 = lazytpu.select %p, %x, %y : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        %1 = lazytpu.select %p, %0, %z : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        %2 = lazytpu.select %p, %y, %1 : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        func.return %2 : tensor<4xf32>""",
        """
        %0 = lazytpu.select %p, %y, %z : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
        func.return %0 : tensor<4xf32>""",
    )


@pytest.mark.parametrize(
    ("direction", "opposite", "dtype"),
    [("EQ", "NE", "f32"), ("NE", "EQ", "f32"), ("LT", "GE", "i32"), ("GE", "LT", "ui8"), ("GT", "LE", "i64")],
)
def test_not_of_compare(direction: str, opposite: str, dtype: str) -> None:
    types = f"(tensor<4x{dtype}>, tensor<4x{dtype}>) -> tensor<4xi1>"
    rewrites(
        "canonicalize",
        f"%x : tensor<4x{dtype}>, %y : tensor<4x{dtype}>",
        f"""
        %0 = lazytpu.compare {direction} %x, %y : {types}
        %1 = lazytpu.not %0 : tensor<4xi1>
        func.return %1 : tensor<4xi1>""",
        f"%0 = lazytpu.compare {opposite} %x, %y : {types}\nfunc.return %0 : tensor<4xi1>",
    )


@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE"])
def test_not_of_an_order_of_floats_stays(direction: str) -> None:
    """not(NaN < 1) is true, NaN >= 1 is false."""
    keeps(
        "canonicalize",
        "%x : tensor<4xf32>, %y : tensor<4xf32>",
        f"""
        %0 = lazytpu.compare {direction} %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
        %1 = lazytpu.not %0 : tensor<4xi1>
        func.return %1 : tensor<4xi1>""",
    )


@pytest.mark.parametrize(("part", "which"), [("real", "%x"), ("imag", "%y")])
def test_part_of_a_complex_number_made_of_parts(part: str, which: str) -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<4xf32>, %y : tensor<4xf32>",
        f"""
        %0 = lazytpu.complex %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xcomplex<f32>>
        %1 = lazytpu.{part} %0 : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
        func.return %1 : tensor<4xf32>""",
        f"func.return {which} : tensor<4xf32>",
    )


def test_parts_of_a_real_number() -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<4xf32>",
        """
        %0 = lazytpu.real %x : tensor<4xf32>
        %1 = lazytpu.imag %x : tensor<4xf32>
        func.return %0, %1 : tensor<4xf32>, tensor<4xf32>""",
        """
        %0 = lazytpu.constant 0.0 : tensor<4xf32>
        func.return %x, %0 : tensor<4xf32>, tensor<4xf32>""",
    )


def test_complex_number_of_its_own_parts() -> None:
    rewrites(
        "canonicalize",
        "%z : tensor<4xcomplex<f32>>",
        """
        %0 = lazytpu.real %z : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
        %1 = lazytpu.imag %z : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
        %2 = lazytpu.complex %0, %1 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xcomplex<f32>>
        func.return %2 : tensor<4xcomplex<f32>>""",
        "func.return %z : tensor<4xcomplex<f32>>",
    )


def test_conjugate_stays() -> None:
    keeps(
        "canonicalize",
        "%z : tensor<4xcomplex<f32>>",
        """
        %0 = lazytpu.real %z : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
        %1 = lazytpu.imag %z : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
        %2 = lazytpu.neg %1 : tensor<4xf32>
        %3 = lazytpu.complex %0, %2 : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xcomplex<f32>>
        func.return %3 : tensor<4xcomplex<f32>>""",
    )
