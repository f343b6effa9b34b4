"""Constants are folded exactly in the op's dtype, or not at all."""

from __future__ import annotations

import pytest

from lazytpu.passes.pipeline import run_pipeline
from tests.passes.modules import keeps, parse_main, rewrites

FOLD = "constant-folding,dce"


def folds(dtype: str, op: str, *numbers: str, to: str, result: str | None = None) -> None:
    """`op` of splats is the splat `to`."""
    constants = "".join(f"%{i} = lazytpu.constant {n} : tensor<70x80x{dtype}>\n" for i, n in enumerate(numbers))
    names, kind = ", ".join(f"%{i}" for i in range(len(numbers))), f"tensor<70x80x{result or dtype}>"
    types = kind
    if result is not None:
        types = f"({', '.join([f'tensor<70x80x{dtype}>'] * len(numbers))}) -> {kind}"
    rewrites(
        FOLD,
        "",
        f"{constants}%r = lazytpu.{op} {names} : {types}\nfunc.return %r : {kind}",
        f"%r = lazytpu.constant {to} : {kind}\nfunc.return %r : {kind}",
    )


@pytest.mark.parametrize(
    ("dtype", "op", "numbers", "to"),
    [
        ("f32", "add", ("1.0", "2.0"), "3.0"),
        ("f32", "add", ("16777216.0", "1.0"), "16777216.0"),  # 2^24 + 1 rounds to even
        ("bf16", "add", ("256.0", "1.0"), "256.0"),
        ("f16", "mul", ("300.0", "300.0"), "inf"),
        ("f32", "neg", ("nan",), "0xffc00000"),
        ("bf16", "abs", ("0xffc0",), "nan"),
        ("f16", "max", ("1.0", "0xfe00"), "0xfe00"),
        ("f32", "min", ("0xffc01234", "1.0"), "0xffc01234"),
        ("f32", "mul", ("-0.0", "3.0"), "-0.0"),
        ("f32", "div", ("1.0", "0.0"), "inf"),
        ("f32", "div", ("1.0", "3.0"), "0.33333334"),
        ("i8", "add", ("127", "1"), "-128"),
        ("ui8", "sub", ("0", "1"), "255"),
        ("i32", "div", ("-7", "2"), "-3"),
        ("i32", "rem", ("-7", "2"), "-1"),
        ("f32", "rem", ("-7.5", "2.0"), "-1.5"),
        ("f32", "max", ("nan", "1.0"), "nan"),
        ("f32", "max", ("-0.0", "0.0"), "-0.0"),
        ("f32", "max", ("0.0", "-0.0"), "0.0"),
        ("f32", "min", ("0.0", "-0.0"), "0.0"),
        ("ui8", "min", ("3", "0"), "0"),
        ("i32", "and", ("12", "10"), "8"),
        ("i32", "xor", ("12", "10"), "6"),
        ("i1", "or", ("true", "false"), "true"),
        ("i8", "shift_left", ("1", "7"), "-128"),
        ("i8", "shift_right_logical", ("-128", "7"), "1"),
        ("i8", "shift_right_arithmetic", ("-128", "7"), "-1"),
        ("f32", "neg", ("0.0",), "-0.0"),
        ("i8", "abs", ("-128",), "-128"),
        ("f32", "sign", ("-0.0",), "-0.0"),
        ("f32", "sqrt", ("2.0",), "1.4142135"),
        ("bf16", "sqrt", ("2.0",), "1.414062"),
        ("f32", "round_nearest_even", ("2.5",), "2.0"),
        ("f32", "floor", ("-0.5",), "-1.0"),
        ("i8", "not", ("0",), "-1"),
        ("f32", "clamp", ("0.0", "nan", "1.0"), "nan"),
        ("f32", "clamp", ("0.0", "7.0", "1.0"), "1.0"),
    ],
)
def test_splats_of_any_size(dtype: str, op: str, numbers: tuple[str, ...], to: str) -> None:
    folds(dtype, op, *numbers, to=to)


@pytest.mark.parametrize(
    ("source", "number", "target", "to"),
    [
        ("f64", "0.1", "f32", "0.1"),
        ("f32", "1.00390625", "bf16", "1.0"),  # a tie, to even
        ("f32", "-1.9", "i32", "-1"),
        ("i32", "16777217", "f32", "16777216.0"),
        ("i32", "300", "ui8", "44"),
        ("i32", "-1", "ui8", "255"),
        ("f32", "nan", "i1", "true"),
        ("i1", "true", "f32", "1.0"),
        ("f32", "2.0", "complex<f32>", "(2.0, 0.0)"),
        ("complex<f32>", "(2.0, 3.0)", "f64", "2.0"),
        ("f64", "0.5", "bf16", "0.5"),
    ],
)
def test_conversions(source: str, number: str, target: str, to: str) -> None:
    folds(source, "convert", number, to=to, result=target)


def test_comparisons() -> None:
    folds("f32", "compare NE", "nan", "nan", to="true", result="i1")
    folds("f32", "compare LE", "-0.0", "0.0", to="true", result="i1")
    folds("ui8", "compare GT", "200", "100", to="true", result="i1")


def test_bits() -> None:
    folds("f32", "bitcast_convert", "-0.0", to="-2147483648", result="i32")


def stays(dtype: str, op: str, *numbers: str, result: str | None = None) -> None:
    constants = "".join(f"%{i} = lazytpu.constant {n} : tensor<{dtype}>\n" for i, n in enumerate(numbers))
    names, kind = ", ".join(f"%{i}" for i in range(len(numbers))), f"tensor<{result or dtype}>"
    types = f"({', '.join([f'tensor<{dtype}>'] * len(numbers))}) -> {kind}" if result is not None else kind
    keeps(FOLD, "", f"{constants}%r = lazytpu.{op} {names} : {types}\nfunc.return %r : {kind}")


@pytest.mark.parametrize(
    ("dtype", "op", "numbers"),
    [
        ("i32", "div", ("1", "0")),
        ("i32", "div", ("-2147483648", "-1")),
        ("ui8", "rem", ("1", "0")),
        ("i32", "shift_left", ("1", "32")),
        ("i32", "shift_right_logical", ("1", "-1")),
        ("f32", "exp", ("1.0",)),
        ("f32", "pow", ("2.0", "0.5")),
        ("complex<f32>", "mul", ("(1.0, 2.0)", "(3.0, 4.0)")),
        ("complex<f32>", "div", ("(1.0, 2.0)", "(3.0, 4.0)")),
    ],
)
def test_undefined_or_inexact_results_are_not_folded(dtype: str, op: str, numbers: tuple[str, ...]) -> None:
    stays(dtype, op, *numbers)


@pytest.mark.parametrize(
    ("source", "number", "target"),
    [
        ("f32", "nan", "i32"),
        ("f32", "30000000000.0", "i32"),
        ("f32", "-1.0", "ui8"),
        ("f64", "9223372036854775808.0", "i64"),
        ("f64", "1.003906250000001", "bf16"),  # two roundings differ from one
        ("i64", "16842753", "bf16"),
    ],
)
def test_undefined_conversions_are_not_folded(source: str, number: str, target: str) -> None:
    stays(source, "convert", number, result=target)


def test_small_tables() -> None:
    rewrites(
        FOLD,
        "",
        """
        %0 = lazytpu.dense_constant [1, 2, 3, 4, 5, 6] : tensor<2x3xi32>
        %1 = lazytpu.constant 10 : tensor<2x3xi32>
        %2 = lazytpu.mul %0, %1 : tensor<2x3xi32>
        %3 = lazytpu.transpose %2 [1, 0] : (tensor<2x3xi32>) -> tensor<3x2xi32>
        %4 = lazytpu.reverse %3 dims = [0] : tensor<3x2xi32>
        %5 = lazytpu.slice %4 starts = [0, 1] limits = [3, 2] strides = [2, 1] : (tensor<3x2xi32>) -> tensor<2x1xi32>
        %6 = lazytpu.broadcast_in_dim %5 dims = [0, 1] : (tensor<2x1xi32>) -> tensor<2x2xi32>
        func.return %6 : tensor<2x2xi32>""",
        """
        %0 = lazytpu.dense_constant [60, 60, 40, 40] : tensor<2x2xi32>
        func.return %0 : tensor<2x2xi32>""",
    )


def test_table_of_equal_elements_becomes_a_splat() -> None:
    rewrites(
        FOLD,
        "",
        """
        %0 = lazytpu.dense_constant [1, 2] : tensor<2xi32>
        %1 = lazytpu.sub %0, %0 : tensor<2xi32>
        func.return %1 : tensor<2xi32>""",
        "%0 = lazytpu.constant 0 : tensor<2xi32>\nfunc.return %0 : tensor<2xi32>",
    )


def test_padded_splat_is_a_table() -> None:
    rewrites(
        FOLD,
        "",
        """
        %0 = lazytpu.constant 7 : tensor<1xi32>
        %1 = lazytpu.constant 0 : tensor<i32>
        %2 = lazytpu.pad %0, %1 low = [1] high = [2] interior = [0] : (tensor<1xi32>, tensor<i32>) -> tensor<4xi32>
        func.return %2 : tensor<4xi32>""",
        "%0 = lazytpu.dense_constant [0, 7, 0, 0] : tensor<4xi32>\nfunc.return %0 : tensor<4xi32>",
    )


@pytest.mark.parametrize(("limit", "left"), [(2, 3), (4, 2)])
def test_limit_in_elements(limit: int, left: int) -> None:
    folded = parse_main(
        "",
        """
        %0 = lazytpu.dense_constant [1, 2] : tensor<2xi32>
        %1 = lazytpu.broadcast_in_dim %0 dims = [1] : (tensor<2xi32>) -> tensor<2x2xi32>
        func.return %1 : tensor<2x2xi32>""",
    )
    records = run_pipeline(folded, passes=f"constant-folding{{limit={limit}}},dce", verify=True)
    assert records[-1].ops_after == left + 1


def test_conversions_of_8_bit_floats_are_not_folded() -> None:
    keeps(
        "constant-folding",
        "",
        """
        %0 = lazytpu.constant 500.0 : tensor<4xf32>
        %1 = lazytpu.convert %0 : (tensor<4xf32>) -> tensor<4xf8E4M3FN>
        func.return %1 : tensor<4xf8E4M3FN>
        """,
    )
