"""Constants, tables, iotas and packs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.lowering.harness import assert_close, compiled, interpreted, values

SCALARS = [
    ("f32", float("-inf")),
    ("f32", float("nan")),
    ("f32", 0.1),
    ("f32", -0.0),
    ("f64", 0.1),
    ("f16", float("inf")),
    ("bf16", 1.0 / 3),
    ("i1", True),
    ("i1", False),
    ("i8", -128),
    ("i64", -(2**63)),
    ("ui8", 255),
    ("ui64", 2**64 - 1),
    ("c64", 1 - 2j),
    ("c128", complex("inf-0.1j")),
]


@pytest.mark.parametrize(("dtype", "value"), SCALARS)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 2)])
def test_constant(dtype, value, shape):
    expected = np.full(shape, value, values(dtype, ()).dtype)
    (actual,) = interpreted(lambda b: b.constant(value, dtype, shape))
    assert_close(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual.real), np.signbit(expected.real))


def test_constants_compiled():
    constants = compiled(lambda b: [b.constant(value, dtype, (2,)) for dtype, value in SCALARS])
    for actual, (dtype, value) in zip(constants, SCALARS, strict=True):
        assert_close(actual, np.full((2,), value, values(dtype, ()).dtype))


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i1", "i8", "i64", "ui16", "ui64", "c64", "c128"])
def test_tables(dtype):
    for shape in [(4, 3), (1, 2), (9,), ()]:
        table = values(dtype, shape, seed=7)
        (actual,) = interpreted(lambda b, table=table: b.array(table, dtype))
        assert_close(actual, table)


def test_exact_bits_of_tables():
    table = np.array([-np.inf, np.nan, -0.0, 1e-40], np.float32)
    (actual,) = compiled(lambda b: b.array(table, "f32"))
    assert actual.tobytes() == table.tobytes()
    narrow = np.array([-np.inf, 1.0, 3.140625], ml_dtypes.bfloat16)
    (actual,) = compiled(lambda b: b.array(narrow, "bf16"))
    assert actual.tobytes() == narrow.tobytes()


@pytest.mark.parametrize("dtype", ["f32", "i64", "ui8", "c64", "bf16"])
def test_iota(dtype):
    rows, columns = interpreted(lambda b: [b.iota(dtype, (3, 4), 0), b.iota(dtype, (3, 4), 1)])
    kind = values(dtype, ()).dtype
    assert_close(rows, np.broadcast_to(np.arange(3)[:, None], (3, 4)).astype(kind))
    assert_close(columns, np.broadcast_to(np.arange(4), (3, 4)).astype(kind))


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_numbers_of_a_pack(run):
    pack = np.array([1.5, -2.0, 0.1])
    for index, actual in enumerate(run(lambda b, p: [b.number(p, i) for i in range(3)], pack)):
        assert_close(actual, pack[index])
