"""convert and bitcast_convert."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lazytpu.ir.types import DTYPES, FLOATS8, bitwidth, is_complex, is_float, numpy_dtype
from lazytpu.passes.patterns.conversions import composes, is_lossless
from tests.passes.modules import keeps, rewrites


def converted(*dtypes: str) -> str:
    lines: list[str] = []
    for i, (source, target) in enumerate(itertools.pairwise(dtypes)):
        operand = f"%{i - 1}" if i else "%x"
        lines.append(f"%{i} = lazytpu.convert {operand} : (tensor<4x{source}>) -> tensor<4x{target}>")
    last = f"%{len(dtypes) - 2}" if len(dtypes) > 1 else "%x"
    return "\n".join([*lines, f"func.return {last} : tensor<4x{dtypes[-1]}>"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("bf16", "f32", "bf16"), ("bf16",)),  # autocast, and back
        (("f16", "f32", "f64"), ("f16", "f64")),
        (("i32", "f64", "i32"), ("i32",)),
        (("i1", "f32", "i32"), ("i1", "i32")),
        (("i32", "i64", "i8"), ("i32", "i8")),
        (("ui8", "i32", "f32"), ("ui8", "f32")),
        (("f32", "complex<f32>", "f32"), ("f32",)),
        (("i32", "i64", "i1"), ("i32", "i1")),
        (("f32", "f32"), ("f32",)),
    ],
)
def test_lossless_conversion_is_skipped(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    rewrites("canonicalize", f"%x : tensor<4x{before[0]}>", converted(*before), converted(*after))


@pytest.mark.parametrize(
    "dtypes",
    [
        ("f32", "bf16", "f32"),  # rounds
        ("f16", "bf16", "f16"),
        ("i32", "f32", "i32"),  # 2^24 + 1
        ("i64", "f64", "i64"),
        ("i32", "i8", "i32"),
        ("i8", "ui8", "i32"),  # -1 becomes 255
        ("f32", "i32", "f32"),
        ("i32", "i1", "i32"),
        ("i32", "f64", "i8"),  # 300 saturates or wraps
        ("complex<f32>", "f32", "complex<f32>"),
        ("f8E5M2", "f32", "f8E5M2"),  # NaN comes back with other bits
        ("i1", "f8E8M0FNU", "f32"),  # it has no 0
    ],
)
def test_lossy_conversion_stays(dtypes: tuple[str, ...]) -> None:
    keeps("canonicalize", f"%x : tensor<4x{dtypes[0]}>", converted(*dtypes))


def extremes(dtype: str) -> np.ndarray:
    """Return numbers of a dtype that another dtype may not represent."""
    kind = numpy_dtype(dtype)
    if dtype == "i1":
        return np.array([False, True])
    if is_complex(dtype):
        return np.array([1 + 2j, 1e30 - 1e-30j], kind)
    if dtype in FLOATS8:
        return np.array(np.arange(256, dtype=np.uint8).view(kind)[np.arange(0, 120, 7)])
    if is_float(dtype):
        unit = np.array(1, kind)
        ulp = np.nextafter(unit, np.array(2, kind))
        top = {"f16": 65504.0, "bf16": 3.3895e38}.get(dtype)
        info = np.finfo(kind) if top is None else None
        return np.array([0.5, -1, float(ulp), top if info is None else float(info.max)], kind)
    info = np.iinfo(kind)
    return np.array([info.min, info.max, info.max - 1, info.max // 2 + 1, 1], kind)


@pytest.mark.parametrize(
    ("source", "target"), [(a, b) for a in sorted(DTYPES) for b in sorted(DTYPES) if is_lossless(a, b)]
)
def test_lossless_conversions_are_reversible(source: str, target: str) -> None:
    numbers = extremes(source)
    converted = numbers.astype(numpy_dtype(target))
    back = converted if is_complex(source) or not is_complex(target) else converted.real
    assert np.array_equal(back.astype(numpy_dtype(source)), numbers)


@pytest.mark.parametrize("source", ["i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64"])
@pytest.mark.parametrize("target", ["f16", "bf16", "f32", "f64", "i8", "i16", "i32", "i64", "ui8", "ui32", "ui64"])
def test_conversion_reversible_for_extremes_is_lossless(source: str, target: str) -> None:
    with np.errstate(all="ignore"):
        numbers = extremes(source)
        converted = numbers.astype(numpy_dtype(target))
    back = [int(float(n)) if is_float(target) and np.isfinite(float(n)) else n for n in converted.tolist()]
    exact = all(a == b for a, b in zip(back, numbers.tolist(), strict=True))
    assert is_lossless(source, target) == exact, (bitwidth(source), target)


def test_composition_with_an_integer_target_needs_one_kind() -> None:
    assert composes("i32", "i64", "i8")
    assert not composes("i32", "f64", "i8")
    assert composes("i1", "f64", "i8")
    assert not composes("f32", "f16", "f32")


def test_bitcast_and_back_is_removed() -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<4xf32>",
        """
        %0 = lazytpu.bitcast_convert %x : (tensor<4xf32>) -> tensor<4x2xi16>
        %1 = lazytpu.bitcast_convert %0 : (tensor<4x2xi16>) -> tensor<4xf32>
        func.return %1 : tensor<4xf32>""",
        "func.return %x : tensor<4xf32>",
    )


def test_bitcast_to_a_third_dtype_stays() -> None:
    keeps(
        "canonicalize",
        "%x : tensor<4xf32>",
        """
        %0 = lazytpu.bitcast_convert %x : (tensor<4xf32>) -> tensor<4x2xi16>
        %1 = lazytpu.bitcast_convert %0 : (tensor<4x2xi16>) -> tensor<4xi32>
        func.return %1 : tensor<4xi32>""",
    )
