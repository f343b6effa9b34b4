"""Matrix products and convolutions against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from lazytpu.lowering import emit, stablehlo_text
from lazytpu.runtime.xla.evaluate import evaluate
from tests.lowering.harness import assert_close, compiled, interpreted, module_of, values


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i64", "ui8", "c64", "c128"])
def test_dot_general(dtype):
    x, y = values(dtype, (2, 3, 4)), values(dtype, (2, 5, 4), seed=1)
    for run in (interpreted, compiled):
        batched, outer, inner = run(
            lambda b, x, y: [
                b.dot_general(x, y, [0], [0], [2], [2]),
                b.dot_general(x, y, [], [], [2], [2]),
                b.dot_general(x, x, [], [], [0, 1, 2], [0, 1, 2]),
            ],
            x,
            y,
        )
        assert_close(batched, np.einsum("bik,bjk->bij", x, y), factor=4)
        assert_close(outer, np.einsum("aik,bjk->aibj", x, y), factor=4)
        assert_close(inner, np.einsum("abc,abc->", x, x), factor=10)


def test_products_of_long_integers_for_a_tpu():
    """A TPU has none: they become sums of elementwise products, with the same results."""
    x, y = values("i64", (2, 3, 4)), values("i64", (2, 5, 4), seed=1)

    def build(b, x, y):
        return [
            b.dot_general(x, y, [0], [0], [2], [2]),
            b.dot_general(x, y, [], [], [2], [2]),
            b.dot_general(x, x, [], [], [0, 1, 2], [0, 1, 2]),
            b.dot_general(x, x, [1], [1], [2, 0], [2, 0]),
            b.dot_general(x, y, [2, 0], [2, 0], [], []),
        ]

    module = emit(module_of(build, ("i64", x.shape), ("i64", y.shape)), platform="tpu")
    assert "dot_general" not in stablehlo_text(module)
    for got, want in zip(evaluate(module, [x, y]), interpreted(build, x, y), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("run", [interpreted, compiled])
def test_narrow_products_accumulate_in_f32(dtype, run):
    x = np.ones((2, 3000), dtype)
    product, wide = run(
        lambda b, x: [
            b.dot_general(x, x, [], [], [1], [1]),
            b.dot_general(x, x, [], [], [1], [1], dtype="f32"),
        ],
        x,
    )
    assert product.dtype == dtype
    assert np.all(product == np.asarray(3000, dtype))
    assert wide.dtype == np.float32
    assert np.all(wide == 3000)


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("contracted", [2, 3])
def test_narrow_products_under_batch_dims_anywhere(contracted, out):
    """XLA:CPU compiles some of these to a program that fails at run time."""
    x, y = values("bf16", (2, 2, 6, 6)), values("bf16", (2, 6, 2, 8), seed=1)
    (product,) = compiled(lambda b, x, y: b.dot_general(x, y, [0, 1], [0, 2], [contracted], [1], dtype=out), x, y)
    wide = [x.astype(np.float32), y.astype(np.float32)]
    expected = np.einsum("abki,akbj->abij" if contracted == 2 else "abik,akbj->abij", *wide)
    np.testing.assert_allclose(product.astype(np.float32), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("sizes", [(4, 64, 24), (8, 64, 4), (64, 4, 24)])
def test_transposed_narrow_products(sizes, out):
    """XLA:CPU swaps the operands of such a product, and compiles some of these to a program that fails at run time."""
    m, k, n = sizes
    x, y = values("bf16", (m, k)), values("bf16", (k, n), seed=1)
    (transposed,) = compiled(
        lambda b, x, y: b.transpose(b.dot_general(x, y, [], [], [1], [0], dtype=out), (1, 0)), x, y
    )
    expected = (x.astype(np.float32) @ y.astype(np.float32)).T
    np.testing.assert_allclose(transposed.astype(np.float32), expected, rtol=1e-2, atol=5e-2)


def test_integers_can_widen():
    x = np.full((2, 300), 100, np.int8)
    (product,) = interpreted(lambda b, x: b.dot_general(x, x, [], [], [1], [1], dtype="i32"), x)
    assert np.all(product == 3_000_000)


def test_linear_layer_is_one_dot_on_the_stored_weight():
    module = module_of(lambda b, x, w: b.dot_general(x, w, [], [], [1], [1]), ("f32", (4, 3)), ("f32", (8, 3)))
    text = stablehlo_text(emit(module))
    assert "contracting_dims = [1] x [1]" in text
    assert text.count("stablehlo.") == 1


@pytest.mark.parametrize(("name", "word"), [("default", ""), ("high", "HIGH, HIGH"), ("highest", "HIGHEST, HIGHEST")])
def test_precision_is_kept(name, word):
    module = module_of(lambda b, x: b.dot_general(x, x, [], [], [1], [1], precision=name), ("f32", (4, 3)))
    assert word in stablehlo_text(emit(module))


def convolve(x, w, stride=1, pad=(0, 0), dilation=1, groups=1):
    """NCW by OIW, one spatial dimension."""
    x = np.pad(x, ((0, 0), (0, 0), pad))
    out, taken, width = w.shape
    span = (width - 1) * dilation + 1
    places = (x.shape[2] - span) // stride + 1
    result = np.zeros((x.shape[0], out, places))
    for o in range(out):
        group = o // (out // groups)
        for place in range(places):
            window = x[:, group * taken : (group + 1) * taken, place * stride : place * stride + span : dilation]
            result[:, o, place] = (window * w[o]).sum((1, 2))
    return result.astype(x.dtype)


def conv(b, x, w, **options):
    ones = [1] * (len(x.type.get_shape()) - 2)
    zeros = [0] * len(ones)
    defaults = {"strides": ones, "low": zeros, "high": zeros, "lhs_dilation": ones, "rhs_dilation": ones}
    return b.convolution(x, w, **(defaults | {"layout": "NC0,OI0,NC0"} | options))


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_convolution(run):
    x, w, grouped = values("f32", (2, 4, 9)), values("f32", (6, 4, 3), seed=1), values("f32", (6, 2, 3), seed=2)
    results = run(
        lambda b, x, w, g: [
            conv(b, x, w),
            conv(b, x, w, strides=[2], low=[1], high=[2]),
            conv(b, x, w, rhs_dilation=[2]),
            conv(b, x, g, feature_groups=2),
            conv(b, x, w, window_reversal=[1]),
            conv(b, b.transpose(x, (0, 2, 1)), b.transpose(w, (2, 1, 0)), layout="N0C,0IO,N0C"),
            conv(b, x, w, lhs_dilation=[2]),
        ],
        x,
        w,
        grouped,
    )
    spread = np.zeros((2, 4, 17), np.float32)
    spread[:, :, ::2] = x
    expected = [
        convolve(x, w),
        convolve(x, w, 2, (1, 2)),
        convolve(x, w, dilation=2),
        convolve(x, grouped, groups=2),
        convolve(x, w[:, :, ::-1]),
        convolve(x, w).transpose(0, 2, 1),
        convolve(spread, w),
    ]
    for actual, want in zip(results, expected, strict=True):
        assert_close(actual, want, factor=10)


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_two_dimensions_and_batch_groups(run):
    x, w = values("f32", (1, 2, 5, 6)), values("f32", (3, 2, 2, 3), seed=1)
    two, groups = run(
        lambda b, x, w, y, v: [
            b.convolution(
                x, w, strides=[1, 1], low=[0, 1], high=[0, 1], lhs_dilation=[1, 1], rhs_dilation=[1, 1],
                layout="NC01,OI01,NC01",
            ),
            conv(b, y, v, batch_groups=2),
        ],
        x, w, values("f32", (2, 3, 5)), values("f32", (4, 3, 2), seed=3),
    )  # fmt: skip
    padded = np.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3), (2, 3))
    assert_close(two, np.einsum("ncijab,ocab->noij", windows, w), factor=10)
    y, v = values("f32", (2, 3, 5)), values("f32", (4, 3, 2), seed=3)
    assert_close(groups, np.concatenate([convolve(y[:1], v[:2]), convolve(y[1:], v[2:])], 1), factor=10)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_narrow_convolutions_accumulate_in_f32(dtype):
    """Compiled only: the interpreter sums a convolution in the dtype of its operands."""
    x = np.ones((1, 40, 100), dtype)
    (actual,) = compiled(lambda b, x: conv(b, x, x), x)
    assert actual.dtype == dtype
    assert float(actual[0, 0, 0]) == 4000
