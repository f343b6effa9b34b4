"""Names, shapes and interning of types."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, DenseArrayBase, IndexType, TensorType, f32, i32, i64
from xdsl.ir import Block
from xdsl.parser import Parser

from lazytpu.ir.types import (
    DTYPES,
    FLOATS8,
    bitwidth,
    canonical,
    dtype_of,
    element_type,
    int_array,
    ints,
    is_complex,
    is_float,
    is_integer,
    is_unsigned,
    numel,
    numpy_dtype,
    shape_of,
    string,
    tensor_type,
    type_of,
)

SPELLED = {
    **{name: f"f8{name[2:].upper()}" for name in FLOATS8},
    "c64": "complex<f32>",
    "c128": "complex<f64>",
}


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_is_an_element_type(dtype: str):
    tensor = tensor_type(dtype, (2, 3))
    assert str(tensor) == f"tensor<2x3x{SPELLED.get(dtype, dtype)}>"
    assert dtype_of(tensor) == dtype
    assert shape_of(tensor) == (2, 3)
    assert tensor_type(dtype, [2, 3]) is tensor


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_parsed_types_are_interned(dtype: str):
    context = Context()
    context.load_dialect(Builtin)
    parsed = Parser(context, str(tensor_type(dtype, (4,)))).parse_type()
    assert parsed is not tensor_type(dtype, (4,))
    assert canonical(parsed) is tensor_type(dtype, (4,))
    assert dtype_of(parsed) == dtype
    assert shape_of(parsed) == (4,)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_has_one_kind_and_a_width(dtype: str):
    kinds = [is_float(dtype), is_complex(dtype), is_integer(dtype), dtype == "i1"]
    assert kinds.count(True) == 1
    assert is_unsigned(dtype) == dtype.startswith("ui")
    assert numpy_dtype(dtype).itemsize == max(bitwidth(dtype) // 8, 1)


def test_numpy_dtypes():
    assert numpy_dtype("ui16") == np.uint16
    assert numpy_dtype("i64") == np.int64
    assert numpy_dtype("f16") == np.float16
    assert numpy_dtype("i1") == np.bool_
    assert numpy_dtype("c128") == np.complex128
    assert numpy_dtype("bf16").name == "bfloat16"


def test_shapes_of_values_and_types():
    block = Block(arg_types=[tensor_type("ui8", ())])
    assert shape_of(block.args[0]) == ()
    assert dtype_of(block.args[0]) == "ui8"
    assert type_of(block.args[0]) is tensor_type("ui8", ())
    assert numel((2, 3, 4)) == 24
    assert numel(()) == 1


def test_sizes_become_plain_integers():
    assert tensor_type("f32", (np.int64(2), True)) is tensor_type("f32", (2, 1))


@pytest.mark.parametrize("dtype", ["float32", "i128", "f80", ""])
def test_an_unknown_dtype_lists_the_known_ones(dtype: str):
    for function in (element_type, bitwidth, numpy_dtype):
        with pytest.raises(ValueError, match="is not a dtype name; expected one of f8e4m3fn, f8e5m2, f8e4m3fnuz"):
            function(dtype)


@pytest.mark.parametrize(
    ("foreign", "message"),
    [
        (f32, "expected a tensor, got f32"),
        (TensorType(IndexType(), (2,)), "index is not an element type of the dialect"),
        (TensorType(f32, (-1, 2)), r"shape \[-1, 2\] has a negative size; shapes are static"),
    ],
)
def test_foreign_types_are_refused(foreign, message: str):
    with pytest.raises(ValueError, match=message):
        shape_of(foreign)
    assert canonical(foreign) is foreign


def test_negative_sizes_are_refused():
    with pytest.raises(ValueError, match="negative size"):
        tensor_type("f32", (2, -1))


def test_lists_of_integers():
    values = (3, -1, 2**62, 0)
    assert ints(int_array(values)) == values
    assert int_array(values) is int_array(list(values))
    assert ints(int_array(())) == ()
    assert int_array(values) == DenseArrayBase.from_list(i64, values)
    with pytest.raises(ValueError, match="expected an array of integers"):
        ints(string("add"))
    assert string("add") is string("add")
    assert i32 != i64
