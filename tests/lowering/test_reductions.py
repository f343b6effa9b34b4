"""Reductions, arg-reductions, windows and scans against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lazytpu.lowering import emit, stablehlo_text
from tests.lowering.harness import assert_close, compiled, interpreted, module_of, values

FOLD = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("kind", FOLD)
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64", "ui8"])
def test_reduce(kind, dtype):
    x = values(dtype, (2, 3, 4))
    results = interpreted(lambda b, x: [b.reduce(kind, x, d) for d in [(0,), (2, 0), (0, 1, 2)]] + [x], x)
    for axes, actual in zip([(0,), (2, 0), (0, 1, 2)], results, strict=False):
        assert_close(actual, np.asarray(FOLD[kind].reduce(x, axes), dtype=x.dtype), factor=4)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_negation_after_a_reduction_keeps_the_sign_of_zero(dtype):
    """XLA:CPU offloads both to a library, from some thousand elements on."""
    first = np.zeros((3, 251, 10))
    first[..., 0] = 1  # the sum of each row
    x = first.astype(values(dtype, (1,)).dtype)
    (negated,) = compiled(
        lambda b, x: [b.neg(b.sub(x, b.broadcast_in_dim(b.reduce("add", x, (2,)), [3, 251, 10], [0, 1])))], x
    )
    zeros = negated[..., 0].astype(np.float64)
    assert not zeros.any() and np.signbit(zeros).all()


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_nan_makes_max_and_min_nan(run):
    x = np.ones((3, 65), np.float32)
    x[1, 40] = np.nan
    highest, lowest, windows, scan = run(
        lambda b, x: [
            b.reduce("max", x, (1,)),
            b.reduce("min", x, (1,)),
            b.reduce_window("max", x, (1, 5), (1, 5), (0, 0), (0, 0)),
            b.cumulative("max", x, 1),
        ],
        x,
    )
    assert np.isnan(highest).tolist() == np.isnan(lowest).tolist() == [False, True, False]
    assert np.isnan(windows).sum() == 1
    assert np.isnan(windows[1, 8])
    np.testing.assert_array_equal(scan, np.maximum.accumulate(x, 1))


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_empty_reductions_give_the_identity(run):
    x, n = np.zeros((0, 2), np.float32), np.zeros((0, 2), np.int32)
    total, product, high, low, most = run(
        lambda b, x, n: [b.reduce(kind, x, (0,)) for kind in FOLD] + [b.reduce("max", n, (0,))], x, n
    )
    assert total.tolist() == [0, 0]
    assert product.tolist() == [1, 1]
    assert high.tolist() == [-np.inf, -np.inf]
    assert low.tolist() == [np.inf, np.inf]
    assert most.tolist() == [-(2**31)] * 2


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_booleans_and_bits(run):
    x = np.array([[True, False], [True, True]])
    n = np.array([[12, 10], [255, 1]], np.uint8)
    signed = np.array([[-1, 6], [7, 3]], np.int64)
    results = run(
        lambda b, x, n, s: [
            b.reduce("and", x, (1,)),
            b.reduce("or", x, (0,)),
            b.reduce("max", x, (1,)),
            b.reduce("min", x, (1,)),
            b.reduce("and", n, (1,)),
            b.reduce("or", n, (1,)),
            b.reduce("and", s, (1,)),
        ],
        x,
        n,
        signed,
    )
    expected = [x.all(1), x.any(0), x.any(1), x.all(1), *(f.reduce(n, 1) for f in (np.bitwise_and, np.bitwise_or))]
    for actual, want in zip(results, [*expected, np.bitwise_and.reduce(signed, 1)], strict=True):
        assert_close(actual, want)


@pytest.mark.parametrize(
    ("dtype", "run", "count"),
    [(ml_dtypes.bfloat16, interpreted, 300), (ml_dtypes.bfloat16, compiled, 4000), (np.float16, compiled, 4000)],
)
def test_narrow_sums_accumulate_in_f32(dtype, run, count):
    """Adding ones in bf16 stops at 256, in f16 at 2048."""
    x = np.ones((count,), dtype)
    total, scan = run(lambda b, x: [b.reduce("add", x, (0,)), b.cumulative("add", x, 0)], x)
    assert float(total) == float(np.asarray(count, dtype))
    assert float(scan[-1]) == float(np.asarray(count, dtype))


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("run", [interpreted, compiled])
def test_argreduce(kind, run):
    function = {"max": np.argmax, "min": np.argmin}[kind]
    cases = [
        values("f32", (3, 40)),
        np.array([[1.0, 5.0, 5.0, -1.0, -1.0]], np.float32),
        np.array([[1.0, np.nan, 7.0, np.nan]], np.float64),
        np.array([[-np.inf, -np.inf], [np.inf, np.inf]], np.float32),
        np.array([[3, 3, -5, -5]], np.int8),
        np.array([[0, 2**64 - 1, 2**64 - 1]], np.uint64),
        np.array([[False, True, True], [False, False, False]]),
        values("bf16", (2, 9)),
    ]
    for x in cases:
        value, index = run(lambda b, x: b.argreduce(kind, x, 1), x)
        expected = function(x.astype(np.float64) if x.dtype == ml_dtypes.bfloat16 else x, 1)
        assert index.dtype == np.int64
        assert index.tolist() == expected.tolist()
        assert_close(value, np.take_along_axis(x, expected[:, None], 1)[:, 0])


def test_argreduce_of_the_first_dimension():
    x = values("f32", (5, 2, 3))
    _, index = interpreted(lambda b, x: b.argreduce("max", x, 0), x)
    assert_close(index, np.argmax(x, 0))


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_windows(run):
    x = np.arange(24, dtype=np.float32).reshape(1, 4, 6)
    total, padded, dilated, spread = run(
        lambda b, x: [
            b.reduce_window("add", x, (1, 2, 3), (1, 2, 3), (0, 0, 0), (0, 0, 0)),
            b.reduce_window("max", x, (1, 2, 1), (1, 1, 1), (0, 1, 0), (0, 0, 0)),
            b.reduce_window("add", x, (1, 2, 1), (1, 1, 1), (0, 0, 0), (0, 0, 0), window_dilations=(1, 2, 1)),
            b.reduce_window("add", x, (1, 1, 2), (1, 1, 1), (0, 0, 0), (0, 0, 0), base_dilations=(1, 1, 2)),
        ],
        x,
    )
    assert_close(total, x.reshape(1, 2, 2, 2, 3).sum((2, 4)))
    assert_close(padded, np.maximum(x, np.pad(x, ((0, 0), (1, 0), (0, 0)), constant_values=-np.inf)[:, :4]))
    assert_close(dilated, x[:, :2] + x[:, 2:])
    assert_close(spread[0, 0], np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 5], np.float32))


@pytest.mark.parametrize("kind", FOLD)
@pytest.mark.parametrize("dtype", ["f32", "i64", "c64"])
def test_cumulative(kind, dtype):
    if dtype == "c64" and kind in ("max", "min"):
        return
    x = values(dtype, (3, 33, 2))
    for run in (interpreted, compiled):
        for dim in (0, 1, 2):
            (actual,) = run(lambda b, x, dim=dim: b.cumulative(kind, x, dim), x)
            assert_close(actual, FOLD[kind].accumulate(x, dim), factor=20)


def test_cumulative_of_long_empty_and_single():
    x = values("f32", (3000,))
    (actual,) = compiled(lambda b, x: b.cumulative("add", x, 0), x)
    assert_close(actual, np.cumsum(x.astype(np.float64)).astype(np.float32), factor=20)
    for shape in [(0, 2), (1, 2), (2, 0)]:
        (actual,) = compiled(lambda b, x: b.cumulative("add", x, 0), np.ones(shape, np.float32))
        assert_close(actual, np.cumsum(np.ones(shape, np.float32), 0))


@pytest.mark.parametrize(("dtype", "op"), [("bf16", "reduce_precision"), ("i8", "clamp"), ("ui8", "clamp")])
def test_operands_of_reductions_are_materialized(dtype, op):
    """XLA:CPU's library for reductions would recompute them in float32. Nothing is inserted on other platforms, nor for
    arguments, moved or not."""

    def text(build, platform):
        return stablehlo_text(emit(module_of(build, (dtype, (4, 6)), (dtype, (4, 6))), platform=platform))

    def computed(b, x, y):
        z = b.mul(x, y)
        return [b.reduce("add", z, (0,)), b.reduce("max", z, (0,)), b.convert(z, "f32"), b.cumulative("max", z, 1)]

    def moved(b, x, y):
        z = b.transpose(b.reshape(x, (6, 4)), (1, 0))
        return [b.reduce("max", z, (0,)), b.convert(z, "f32"), b.convert(b.slice(y, (0, 1), (2, 5), (1, 1)), "f32")]

    assert text(computed, "cpu").count(f"stablehlo.{op} ") == 4
    assert text(computed, "tpu").count(f"stablehlo.{op} ") == 0
    assert text(moved, "cpu").count(f"stablehlo.{op} ") == 0


@pytest.mark.parametrize("dtype", ["i8", "ui8"])
def test_small_integers_wrap_around_before_a_sum(dtype):
    kind = np.int8 if dtype == "i8" else np.uint8
    x = np.full((64, 96), 100, kind)
    total, most = compiled(
        lambda b, x: [b.reduce("add", b.convert(b.mul(x, x), "f32"), (1,)), b.reduce("max", b.add(x, x), (1,))], x
    )
    assert (total == 96 * float((x * x)[0, 0])).all()
    assert (most == (x + x)[0, 0]).all()


def test_a_sum_of_many_complex_numbers_keeps_its_digits():
    x = (np.linspace(0.1, 1, 300_000) * (1 - 2j)).astype(np.complex64)
    (got,) = compiled(lambda b, v: b.reduce("add", v, [0]), x)
    exact = x.astype(np.complex128).sum()
    assert abs(got - exact) < 2e-6 * abs(exact)


def test_total_is_accumulated_in_f64_with_its_products():
    x, y = np.array([1e8, 1, -1e8], np.float32), np.array([1e20, 1e20], np.float32)
    assert compiled(lambda b, v: b.reduce("total", v, [0]), x)[0] == 1
    assert compiled(lambda b, v, w: b.reduce("total", b.mul(v, w), [0]), y, y * np.array([1, -1], np.float32))[0] == 0


def test_complex_total_is_accumulated_by_parts():
    x = np.array([1e8 + 1e8j, 1 + 2j, -1e8 - 1e8j], np.complex64)
    (total,) = compiled(lambda b, v: b.reduce("total", v, [0]), x)
    assert total == 1 + 2j
