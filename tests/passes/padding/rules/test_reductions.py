"""Reductions, scans, windows, sorts and products, at every size, with poison in the padding."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.padding.sized import compiled, same_at_every_size

ONE = {"n": (1, 5)}
KINDS = [("add", "f32"), ("add", "i32"), ("mul", "f32"), ("max", "f32"), ("min", "f32"), ("max", "i8"), ("min", "ui8")]
KINDS += [("and", "i1"), ("or", "i1"), ("and", "i32"), ("or", "ui32"), ("max", "i1"), ("add", "bf16"), ("and", "ui8")]
KINDS += [("total", "f32")]


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_reduce(kind: str, dtype: str) -> None:
    def build(b, x, n):
        return [b.reduce(kind, x, (1,)), b.reduce(kind, x, (0, 1)), b.reduce(kind, x, (0,))]

    same_at_every_size(build, [f"{dtype}[3,n]"], tolerance=1e-5, sizes=[{"n": 0}, {"n": 1}, {"n": 4}, {"n": 5}])


def test_mean() -> None:
    def build(b, x, n):
        return b.div(b.reduce("add", x, (1,)), b.constant(n, "f32", (3,)))

    same_at_every_size(build, ["f32[3,n]"], tolerance=1e-6)


def test_reduce_of_a_merged_dimension() -> None:
    def build(b, x, n):
        merged = b.reshape(b.neg(x), (3 * n, 2))
        return [b.reduce("add", merged, (0,)), b.reduce("max", merged, (0, 1))]

    assert same_at_every_size(build, ["f32[3,n,2]"], ONE, tolerance=1e-5).masks == 2


def test_two_symbols() -> None:
    def build(b, x, n, m):
        merged = b.reshape(x, (m * n,))
        total = b.reduce("add", merged, (0,))
        return [b.div(total, b.constant(m * n, "f32")), b.reduce("max", x, (0,)), b.neg(merged)]

    symbols = {"n": (1, 5), "m": (1, 4)}
    same_at_every_size(build, ["f32[m,n]"], symbols, tolerance=1e-5)


def test_softmax() -> None:
    def build(b, x, n):
        shape = (3, n)
        top = b.broadcast_in_dim(b.reduce("max", x, (1,)), shape, (0,))
        exps = b.exp(b.sub(x, top))
        return b.div(exps, b.broadcast_in_dim(b.reduce("add", exps, (1,)), shape, (0,)))

    assert same_at_every_size(build, ["f32[3,n]"], tolerance=1e-6).masks == 2


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_argreduce(kind: str, dtype: str) -> None:
    def extremes(i, array, rng):
        low = -np.inf if array.dtype.kind == "f" else np.iinfo(array.dtype).min
        return np.full_like(array, low if kind == "max" else -low if array.dtype.kind == "f" else -(low + 1))

    def build(b, x, n):
        return [*b.argreduce(kind, x, 1), *b.argreduce(kind, x, 0)]

    same_at_every_size(build, [f"{dtype}[3,n]"], ONE)
    same_at_every_size(build, [f"{dtype}[3,n]"], ONE, values=extremes, sizes=[{"n": 3}])


def test_argreduce_lets_nan_win() -> None:
    def build(b, x, n):
        return b.argreduce("max", x, 1)

    def values(i, array, rng):
        return np.where(rng.random(array.shape) < 0.4, np.nan, array)

    same_at_every_size(build, ["f32[3,n]"], ONE, values=values)


@pytest.mark.parametrize("kind", ["add", "mul", "max", "min"])
def test_cumulative(kind: str) -> None:
    def build(b, x, n):
        return [b.cumulative(kind, x, 1), b.cumulative(kind, x, 0)]

    assert same_at_every_size(build, ["f32[3,n]"], tolerance=1e-5).masks == 0


def test_cumulative_of_a_merged_dimension_and_of_a_constant() -> None:
    def build(b, x, n):
        scanned = b.cumulative("add", b.reshape(x, (3 * n,)), 0)
        ones = b.cumulative("add", b.constant(1, "f32", (n,)), 0)
        return [scanned, b.neg(ones)]

    same_at_every_size(build, ["f32[3,n]"], ONE, tolerance=1e-5)


WINDOWS = {
    "same": {"window": (1, 3), "strides": (1, 1), "low": (0, 1), "high": (0, 1)},
    "steps": {"window": (2, 3), "strides": (1, 2), "low": (0, 1), "high": (0, 1)},
    "dilated": {"window": (1, 2), "strides": (1, 1), "low": (0, 1), "high": (0, 1), "window_dilations": (1, 2)},
    "base": {"window": (1, 2), "strides": (1, 1), "low": (0, 1), "high": (0, 1), "base_dilations": (1, 2)},
    "other": {"window": (2, 1), "strides": (1, 1), "low": (0, 0), "high": (0, 0)},
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("kind", ["add", "max"])
def test_reduce_window(name: str, kind: str) -> None:
    ones = {"base_dilations": (1, 1), "window_dilations": (1, 1)}

    def build(b, x, n):
        return b.reduce_window(kind, x, **(ones | WINDOWS[name]))

    same_at_every_size(build, ["f32[3,n]"], ONE, tolerance=1e-5)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "i32", "i1"])
def test_sort(dtype: str, descending: bool) -> None:
    def values(i, array, rng):
        if array.dtype.kind != "f" or i:
            return array
        return rng.choice(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]), array.shape)

    def build(b, x, y, n):
        return b.sort([x, b.iota("i64", (3, n), 1), y], 1, descending)

    same_at_every_size(build, [f"{dtype}[3,n]", "f32[3,n]"], values=values)


def test_sort_of_a_merged_dimension_and_topk() -> None:
    def build(b, x, n):
        (ordered,) = b.sort([b.reshape(x, (3 * n,))], 0, True)
        return [ordered, b.slice(ordered, (0,), (2,)), *b.sort([x], 0)]

    same_at_every_size(build, ["f32[3,n]"], ONE)


DOTS = {
    "contract": lambda b, x, y, n: b.dot_general(x, y, (), (), (1,), (0,)),
    "free": lambda b, x, y, n: b.dot_general(x, y, (), (), (0,), (1,)),
    "batch": lambda b, x, y, n: b.dot_general(x, b.transpose(y, (1, 0)), (1,), (1,), (0,), (0,)),
    "two": lambda b, x, y, n: b.dot_general(x, b.transpose(y, (1, 0)), (), (), (0, 1), (0, 1)),
    "constant": lambda b, x, y, n: b.dot_general(x, b.constant(float("inf"), "f32", (n, 2)), (), (), (1,), (0,)),
    "ones of merged": lambda b, x, y, n: b.dot_general(
        b.reshape(b.convert(x, "f32"), (3 * n,)), b.constant(1, "f32", (3 * n, 2)), (), (), (0,), (0,)
    ),
}


@pytest.mark.parametrize("name", DOTS)
def test_dot_general(name: str) -> None:
    same_at_every_size(DOTS[name], ["f32[3,n]", "f32[n,3]"], ONE, tolerance=1e-5)


def test_dot_general_of_integers_masks_one_side() -> None:
    assert same_at_every_size(DOTS["contract"], ["i32[3,n]", "i32[n,3]"], ONE).masks == 1


def convolve(b, x, w, **more):
    plain = {
        "strides": (1,),
        "low": (1,),
        "high": (1,),
        "lhs_dilation": (1,),
        "rhs_dilation": (1,),
        "window_reversal": (0,),
    }
    return b.convolution(x, w, **(plain | {"layout": "NC0,OI0,NC0"} | more))


CONVOLUTIONS = {
    "length": (lambda b, x, w, n: convolve(b, x, w), ["f32[2,3,n]", "f32[4,3,3]"]),
    "steps": (lambda b, x, w, n: convolve(b, x, w, strides=(2,)), ["f32[2,3,n]", "f32[4,3,3]"]),
    "transposed": (lambda b, x, w, n: convolve(b, x, w, lhs_dilation=(2,)), ["f32[2,3,n]", "f32[4,3,3]"]),
    "batch": (lambda b, x, w, n: convolve(b, x, w), ["f32[n,3,5]", "f32[4,3,3]"]),
    "features": (lambda b, x, w, n: convolve(b, x, w), ["f32[2,n,5]", "f32[4,n,3]"]),
    "kernels": (lambda b, x, w, n: convolve(b, x, w), ["f32[2,3,5]", "f32[n,3,3]"]),
    "gradient": (lambda b, x, g, n: convolve(b, x, g, layout="CN0,IO0,CN0"), ["f32[2,3,n]", "f32[2,4,n]"]),
    "groups": (lambda b, x, w, n: convolve(b, x, w, feature_groups=3), ["f32[2,3,n]", "f32[6,1,3]"]),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    build, arguments = CONVOLUTIONS[name]
    same_at_every_size(build, arguments, ONE, tolerance=1e-5, run=compiled, sizes=[{"n": 1}, {"n": 4}])
