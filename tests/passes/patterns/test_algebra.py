"""Arithmetic: valid simplifications, and invalid ones, which would change NaN, infinities or -0.0."""

from __future__ import annotations

import pytest

from tests.passes.modules import keeps, rewrites


def with_constant(op: str, dtype: str, number: str, left: bool = False) -> str:
    operands = "%0, %x" if left else "%x, %0"
    return f"""
    %0 = lazytpu.constant {number} : tensor<2x3x{dtype}>
    %1 = lazytpu.{op} {operands} : tensor<2x3x{dtype}>
    func.return %1 : tensor<2x3x{dtype}>"""


def returns(value: str, dtype: str, constant: str | None = None) -> str:
    definition = f"{value} = lazytpu.constant {constant} : tensor<2x3x{dtype}>\n" if constant else ""
    return f"{definition}func.return {value} : tensor<2x3x{dtype}>"


@pytest.mark.parametrize(
    ("op", "dtype", "number"),
    [
        ("add", "f32", "-0.0"),
        ("add", "i32", "0"),
        ("add", "i1", "false"),
        ("sub", "f32", "0.0"),
        ("sub", "ui8", "0"),
        ("mul", "bf16", "1.0"),
        ("mul", "i64", "1"),
        ("mul", "i1", "true"),
        ("div", "f64", "1.0"),
        ("div", "i32", "1"),
        ("pow", "f32", "1.0"),
        ("max", "f32", "-inf"),
        ("max", "i8", "-128"),
        ("max", "ui8", "0"),
        ("min", "f16", "inf"),
        ("min", "i32", "2147483647"),
        ("min", "ui8", "255"),
        ("and", "i32", "-1"),
        ("and", "ui8", "255"),
        ("and", "i1", "true"),
        ("or", "i1", "false"),
        ("xor", "i64", "0"),
        ("shift_left", "i32", "0"),
        ("shift_right_logical", "ui32", "0"),
        ("shift_right_arithmetic", "i32", "0"),
    ],
)
def test_neutral_number_is_dropped(op: str, dtype: str, number: str) -> None:
    argument = f"%x : tensor<2x3x{dtype}>"
    rewrites("canonicalize", argument, with_constant(op, dtype, number), returns("%x", dtype))
    if op in ("add", "mul", "max", "min", "and", "or", "xor"):
        rewrites("canonicalize", argument, with_constant(op, dtype, number, left=True), returns("%x", dtype))


@pytest.mark.parametrize(
    ("op", "dtype", "number"),
    [
        ("add", "f32", "0.0"),  # -0.0 + 0.0 is 0.0
        ("sub", "f32", "-0.0"),
        ("mul", "f32", "0.0"),  # 0.0 only for finite positive x
        ("mul", "f32", "-0.0"),
        ("mul", "c64", "(1.0, 0.0)"),  # (inf + 0i) * (1 + 0i) has a NaN part
        ("pow", "f32", "0.0"),
        ("max", "f32", "inf"),  # NaN wins
        ("max", "i32", "0"),
        ("min", "f32", "-inf"),
        ("and", "i8", "1"),
    ],
)
def test_number_that_is_not_neutral_stays(op: str, dtype: str, number: str) -> None:
    element = "complex<f32>" if dtype == "c64" else dtype
    keeps("canonicalize", f"%x : tensor<2x3x{element}>", with_constant(op, element, number))


@pytest.mark.parametrize(("op", "dtype", "number"), [("sub", "i32", "0"), ("div", "f32", "1.0")])
def test_left_neutral_number_of_an_op_that_does_not_commute_stays(op: str, dtype: str, number: str) -> None:
    keeps("canonicalize", f"%x : tensor<2x3x{dtype}>", with_constant(op, dtype, number, left=True))


@pytest.mark.parametrize(
    ("op", "dtype", "number"),
    [("mul", "i32", "0"), ("mul", "i1", "false"), ("and", "ui8", "0"), ("or", "i8", "-1"), ("add", "i1", "true")],
)
@pytest.mark.parametrize("left", [False, True])
def test_absorbing_number_is_the_result(op: str, dtype: str, number: str, left: bool) -> None:
    argument = f"%x : tensor<2x3x{dtype}>"
    rewrites("canonicalize", argument, with_constant(op, dtype, number, left), returns("%0", dtype, number))


@pytest.mark.parametrize(("op", "dtype"), [("max", "f32"), ("min", "i32"), ("and", "i1"), ("or", "ui8")])
def test_equal_operands_are_the_result(op: str, dtype: str) -> None:
    body = f"%0 = lazytpu.{op} %x, %x : tensor<2x3x{dtype}>\n" + returns("%0", dtype)
    rewrites("canonicalize", f"%x : tensor<2x3x{dtype}>", body, returns("%x", dtype))


@pytest.mark.parametrize(("op", "dtype", "zero"), [("sub", "i32", "0"), ("xor", "i1", "false"), ("xor", "i8", "0")])
def test_equal_operands_cancel(op: str, dtype: str, zero: str) -> None:
    body = f"%0 = lazytpu.{op} %x, %x : tensor<2x3x{dtype}>\n" + returns("%0", dtype)
    rewrites("canonicalize", f"%x : tensor<2x3x{dtype}>", body, returns("%0", dtype, zero))


@pytest.mark.parametrize("element", ["f32", "complex<f32>"])
def test_equal_floats_do_not_cancel(element: str) -> None:
    """inf - inf is NaN."""
    keeps(
        "canonicalize",
        f"%x : tensor<2x{element}>",
        f"%0 = lazytpu.sub %x, %x : tensor<2x{element}>\nfunc.return %0 : tensor<2x{element}>",
    )


@pytest.mark.parametrize(("op", "left"), [("mul", False), ("mul", True), ("div", False)])
@pytest.mark.parametrize(("dtype", "number"), [("f32", "-1.0"), ("i32", "-1")])
def test_times_minus_one_is_the_negative(op: str, left: bool, dtype: str, number: str) -> None:
    negative = f"%0 = lazytpu.neg %x : tensor<2x3x{dtype}>\n" + returns("%0", dtype)
    rewrites("canonicalize", f"%x : tensor<2x3x{dtype}>", with_constant(op, dtype, number, left), negative)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("add %x, %0", "sub %x, %y"),
        ("add %0, %x", "sub %x, %y"),
        ("sub %x, %0", "add %x, %y"),
    ],
)
def test_added_negative_is_subtracted(before: str, after: str) -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<4xf32>, %y : tensor<4xf32>",
        f"""
        %0 = lazytpu.neg %y : tensor<4xf32>
        %1 = lazytpu.{before} : tensor<4xf32>
        func.return %1 : tensor<4xf32>""",
        f"%0 = lazytpu.{after} : tensor<4xf32>\nfunc.return %0 : tensor<4xf32>",
    )


@pytest.mark.parametrize(("op", "dtype"), [("neg", "f32"), ("neg", "ui8"), ("not", "i1"), ("not", "i32")])
def test_double_negation_is_removed(op: str, dtype: str) -> None:
    rewrites(
        "canonicalize",
        f"%x : tensor<2x3x{dtype}>",
        f"""
        %0 = lazytpu.{op} %x : tensor<2x3x{dtype}>
        %1 = lazytpu.{op} %0 : tensor<2x3x{dtype}>
        {returns("%1", dtype)}""",
        returns("%x", dtype),
    )


@pytest.mark.parametrize("op", ["neg", "abs"])
def test_absolute_value_drops_the_sign(op: str) -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<2x3xf32>",
        f"""
        %0 = lazytpu.{op} %x : tensor<2x3xf32>
        %1 = lazytpu.abs %0 : tensor<2x3xf32>
        {returns("%1", "f32")}""",
        "%0 = lazytpu.abs %x : tensor<2x3xf32>\n" + returns("%0", "f32"),
    )
