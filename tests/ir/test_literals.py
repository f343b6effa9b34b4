"""Numbers round-trip through attributes, text and bytes with the same bits."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.dialects.builtin import ArrayAttr, FloatAttr, IntegerAttr, bf16, f32, i1, i8
from xdsl.ir import Attribute
from xdsl.parser import Parser

from lazytpu.ir.literals import (
    check_scalar,
    from_bytes,
    from_literal,
    number_of,
    parse_literal,
    scalar,
    to_bytes,
    to_text,
)
from lazytpu.ir.text import context
from lazytpu.ir.types import COMPLEX, DTYPES, FLOATS, INTEGERS, bitwidth, numpy_dtype

CONTEXT = context()


def read(text: str, dtype: str) -> Attribute:
    return from_literal(parse_literal(Parser(CONTEXT, text)), dtype)


@pytest.mark.parametrize("dtype", sorted(DTYPES - {"i1"}))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_all_bit_patterns_survive_text_and_bytes(dtype: str, data: st.DataObject):
    size = bitwidth(dtype) // 8
    raw = data.draw(st.integers(0, 2 ** (8 * size) - 1)).to_bytes(size, "little")
    (value,) = from_bytes(raw, dtype)
    check_scalar(value, dtype)
    assert read(to_text(value), dtype) == value
    assert from_bytes(to_bytes(value), dtype) == [value]
    with np.errstate(invalid="ignore"):  # numpy warns of a signalling NaN
        widened = np.frombuffer(raw, numpy_dtype(dtype)).astype("c16" if dtype in COMPLEX else "f8")
    if not np.isnan(widened).any():
        assert to_bytes(value) == raw


@pytest.mark.parametrize("dtype", sorted(FLOATS))
@settings(max_examples=60, deadline=None)
@given(number=st.floats())
def test_python_floats_round_to_nearest_even(dtype: str, number: float):
    value = scalar(number, dtype)
    with np.errstate(over="ignore"):
        expected = np.array(number).astype(numpy_dtype(dtype))
    if math.isnan(number) or np.isnan(expected):  # f8e4m3fn has no infinity: it overflows to NaN
        assert math.isnan(number_of(value))
    else:
        assert to_bytes(value) == expected.tobytes()
    assert read(to_text(value), dtype) == value


@pytest.mark.parametrize(
    ("number", "dtype", "text"),
    [
        (0.1, "f32", "0.1"),
        (0.1, "f64", "0.1"),
        (0.1, "bf16", "0.1"),
        (0.1, "f16", "0.1"),
        (1 / 3, "f64", "0.3333333333333333"),
        (1 / 3, "f32", "0.33333334"),
        (1e-5, "f32", "1.0e-05"),
        (1e-8, "f64", "1.0e-08"),
        (16777217.0, "f64", "16777217.0"),
        (3.4028234663852886e38, "f32", "3.4028235e+38"),
        (1e300, "f32", "inf"),
        (5e-324, "f64", "5.0e-324"),
        (-0.0, "bf16", "-0.0"),
        (-math.inf, "f32", "-inf"),
        (math.nan, "bf16", "nan"),
        (2**64 - 1, "ui64", "18446744073709551615"),
        (-(2**63), "i64", "-9223372036854775808"),
        (True, "i1", "true"),
        (0, "i1", "false"),
        (complex(-0.0, math.inf), "c64", "(-0.0, inf)"),
        (complex(0.1, math.nan), "c128", "(0.1, nan)"),
        (2, "c64", "(2.0, 0.0)"),
        (3, "f32", "3.0"),
        (3.0, "i32", "3"),
        (3 + 0j, "i32", "3"),
        (2.0, "i1", "true"),
    ],
)
def test_text_of_numbers(number: complex, dtype: str, text: str):
    value = scalar(number, dtype)
    assert to_text(value) == text
    assert read(text, dtype) == value


def test_text_of_other_nans_is_their_bits():
    (negative,) = from_bytes(bytes.fromhex("0000c0ff"), "f32")
    assert to_text(negative) == "0xffc00000"
    assert to_bytes(read("0xffc00000", "f32")).hex() == "0000c0ff"
    (payload,) = from_bytes(bytes.fromhex("010000000000f87f"), "f64")
    assert to_text(payload) == "0x7ff8000000000001"
    assert read(to_text(payload), "f64") == payload


def test_zeros_differ_by_their_sign():
    assert scalar(0.0, "f32") != scalar(-0.0, "f32")
    assert scalar(complex(0.0, -0.0), "c64") != scalar(0j, "c64")


def test_numbers_survive_text():
    assert number_of(scalar(True, "i1")) is True
    assert number_of(scalar(255, "ui8")) == 255
    assert number_of(scalar(-1, "i8")) == -1
    assert number_of(scalar(1 - 2j, "c64")) == 1 - 2j
    assert number_of(scalar(0.1, "f32")) == struct.unpack("<f", struct.pack("<f", 0.1))[0]
    with pytest.raises(ValueError, match="is not a scalar constant"):
        number_of(ArrayAttr([]))
    for function in (to_text, to_bytes):
        with pytest.raises(ValueError, match="is not a scalar constant"):
            function(ArrayAttr([]))


def test_true_is_one_byte_of_one():
    assert to_bytes(IntegerAttr(1, i1)) == b"\x01"
    assert from_bytes(b"\x01\x00", "i1") == [IntegerAttr(1, i1), IntegerAttr(0, i1)]


@pytest.mark.parametrize(
    ("number", "dtype", "message"),
    [
        (0.5, "i32", "0.5 is not a whole number; expected one for i32"),
        (math.inf, "i64", "inf is not a whole number"),
        (math.nan, "ui8", "nan is not a whole number"),
        (300, "ui8", "300 does not fit ui8, which holds 0 to 255"),
        (-1, "ui64", "-1 does not fit ui64"),
        (2**64, "i64", "does not fit i64"),
        (1j, "f32", "has an imaginary part; expected a real number for f32"),
        (1, "int", "'int' is not a dtype name"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(number: complex, dtype: str, message: str):
    with pytest.raises(ValueError, match=message):
        scalar(number, dtype)


@pytest.mark.parametrize("dtype", sorted(INTEGERS))
def test_limits_of_integers_are_accepted(dtype: str):
    info = np.iinfo(numpy_dtype(dtype))
    for number in (int(info.min), int(info.max)):
        value = scalar(number, dtype)
        assert number_of(value) == number
        assert to_bytes(value) == np.array(number, numpy_dtype(dtype)).tobytes()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (FloatAttr(1.0, bf16), "f32"),
        (IntegerAttr(1, i8), "i1"),
        (FloatAttr(1.0, f32), "c64"),
        (ArrayAttr([FloatAttr(1.0, f32)] * 3), "c64"),
        (ArrayAttr([FloatAttr(1.0, f32)] * 2), "c128"),
        (ArrayAttr([FloatAttr(1.0, f32)] * 2), "f32"),
    ],
)
def test_attributes_of_another_dtype_are_refused(value: Attribute, dtype: str):
    with pytest.raises(ValueError, match=f"is not a number of dtype {dtype}"):
        check_scalar(value, dtype)


@pytest.mark.parametrize(
    ("text", "dtype", "message"),
    [
        ("1.5", "i32", "1.5 is not an integer"),
        ("true", "f32", "True is not a number of dtype f32"),
        ("(1.0, 2.0)", "f32", "is not a number of dtype f32"),
        ("1.0", "c64", r"expected a pair \(real, imaginary\) for c64"),
        ("-1", "f32", "-1 is not a pattern of the 32 bits of f32"),
        ("0x10000", "bf16", "65536 is not a pattern of the 16 bits of bf16"),
    ],
)
def test_text_of_another_dtype_is_refused(text: str, dtype: str, message: str):
    with pytest.raises(ValueError, match=message):
        read(text, dtype)
