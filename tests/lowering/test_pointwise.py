"""Elementwise rules against numpy and the standard library."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from lazytpu.ir.dialect import OPS
from lazytpu.ir.types import bitwidth, dtype_of
from lazytpu.lowering import emit, stablehlo_text
from lazytpu.lowering.pointwise import DIRECT
from tests.lowering.harness import assert_close, compiled, interpreted, module_of, values

X = np.array([-2.5, -1.5, -0.75, -0.25, -0.0, 0.0, 0.3, 0.5, 1.5, 2.5])
UNIT = np.array([-0.9, -0.5, -0.1, 0.0, 0.2, 0.7])
POSITIVE = np.array([0.1, 0.5, 1.0, 2.0, 7.5])


def elementwise(function):
    return lambda x: np.array([function(v) for v in x.ravel()]).reshape(x.shape)


# op -> (numpy function, its domain)
UNARY = {
    "abs": (np.abs, X),
    "neg": (np.negative, X),
    "sign": (np.sign, X),
    "ceil": (np.ceil, X),
    "floor": (np.floor, X),
    "round_nearest_even": (np.rint, X),
    "exp": (np.exp, X),
    "expm1": (np.expm1, X),
    "log": (np.log, POSITIVE),
    "log1p": (np.log1p, POSITIVE),
    "sqrt": (np.sqrt, POSITIVE),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE),
    "cbrt": (np.cbrt, X),
    "sin": (np.sin, X),
    "cos": (np.cos, X),
    "tan": (np.tan, UNIT),
    "tanh": (np.tanh, X),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), X),
    "erf": (elementwise(math.erf), X),
    "erfc": (elementwise(math.erfc), X),
    "lgamma": (elementwise(math.lgamma), POSITIVE),
    "acos": (np.arccos, UNIT),
    "asin": (np.arcsin, UNIT),
    "atan": (np.arctan, X),
    "sinh": (np.sinh, X),
    "cosh": (np.cosh, X),
    "asinh": (np.arcsinh, X),
    "acosh": (np.arccosh, 1 + POSITIVE),
    "atanh": (np.arctanh, UNIT),
}

BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "rem": np.fmod,
    "atan2": np.arctan2,
    "max": np.maximum,
    "min": np.minimum,
    "next_after": np.nextafter,
}


def test_every_elementwise_op_has_a_rule():
    with_a_rule = {"atanh", "bitcast_convert", "clamp", "compare", "convert"}
    with_a_rule |= {"div", "lgamma", "log1p", "max", "min", "neg", "pow"}
    elementwise = with_a_rule | set(DIRECT)
    assert set(DIRECT) <= set(OPS)
    families = ("lazytpu.ir.pointwise", "lazytpu.ir.unary", "lazytpu.ir.binary")
    assert {name for name, op in OPS.items() if op.__module__ in families} == elementwise


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    function, x = UNARY[name]
    for dtype in (np.float32, np.float64):
        (actual,) = interpreted(lambda b, v: b.unary(name, v), x.astype(dtype))
        assert_close(actual, function(x.astype(dtype)).astype(dtype), factor=20 if name == "lgamma" else 4)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
def test_unary_compiled(dtype):
    """All ops in one program, compiled by XLA."""
    names = list(UNARY)
    kind = values(dtype, ()).dtype
    inputs = [UNARY[name][1].astype(kind) for name in names]
    results = compiled(lambda b, *xs: [b.unary(n, x) for n, x in zip(names, xs, strict=True)], *inputs)
    for name, x, actual in zip(names, inputs, results, strict=True):
        assert_close(actual, UNARY[name][0](x.astype(np.float64)).astype(kind), factor=30 if name == "lgamma" else 5)


def test_inverses_and_gamma_functions():
    x = UNIT.astype(np.float64)
    for run in (interpreted, compiled):
        inverse, digamma, trigamma, zeta, i1e = run(
            lambda b, x, y, one, two: [
                b.unary("erf", b.unary("erf_inv", x)),
                b.unary("digamma", y),
                b.binary("polygamma", one, y),
                b.binary("zeta", two, y),
                b.unary("bessel_i1e", y),
            ],
            x,
            np.array([1.0, 2.0]),
            np.array([1.0, 1.0]),
            np.array([2.0, 2.0]),
        )
        assert_close(inverse, x, factor=100)
        np.testing.assert_allclose(digamma, [-0.5772156649015329, 0.42278433509846713], rtol=1e-10)
        np.testing.assert_allclose(trigamma, [math.pi**2 / 6, math.pi**2 / 6 - 1], rtol=1e-10)
        np.testing.assert_allclose(zeta, [math.pi**2 / 6, math.pi**2 / 6 - 1], rtol=1e-10)
        np.testing.assert_allclose(i1e, [0.20791041534970845, 0.21526928924893768], rtol=1e-10)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    x, y = X, np.roll(X, 3) + 0.125
    for run in (interpreted, compiled):
        (actual,) = run(lambda b, v, w: b.binary(name, v, w), x, y)
        assert_close(actual, BINARY[name](x, y))


def test_power():
    x, y = np.array([2.0, 0.0, -2.0, 4.0]), np.array([3.0, 0.0, 3.0, 0.5])
    (actual,) = interpreted(lambda b, v, w: b.binary("pow", v, w), x, y)
    assert_close(actual, np.power(x, y))
    (actual,) = interpreted(lambda b, v, w: b.binary("pow", v, w), np.array([2, -3]), np.array([10, 3]))
    assert actual.tolist() == [1024, -27]


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_max_and_min_give_nan(run):
    x, y = np.array([np.nan, 1.0, 2.0], np.float32), np.array([0.0, np.nan, 1.0], np.float32)
    high, low = run(lambda b, v, w: [b.max(v, w), b.min(v, w)], x, y)
    assert_close(high, np.maximum(x, y))
    assert_close(low, np.minimum(x, y))


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
def test_integers(dtype):
    x = np.array([7, 100, 3, 0], dtype) if np.issubdtype(dtype, np.unsignedinteger) else np.array([7, -7, 3, 0], dtype)
    y = np.array([2, 2, 5, 1], dtype)
    names = ("add", "sub", "mul", "div", "rem", "and", "or", "xor", "shift_left", "shift_right_arithmetic")
    results = interpreted(
        lambda b, v, w: [b.binary(n, v, w) for n in names] + [b.not_(v), b.unary("popcount", w)], x, y
    )
    shift = np.right_shift if np.issubdtype(dtype, np.signedinteger) else None
    quotient = np.trunc(x / y).astype(dtype)
    expected = [x + y, x - y, x * y, quotient, x - quotient * y, x & y, x | y, x ^ y, np.left_shift(x, y)]
    for actual, want in zip(results, expected, strict=False):
        assert_close(actual, want)
    if shift is not None:
        assert_close(results[9], shift(x, y))
    assert_close(results[10], ~x)
    assert results[11].tolist() == [1, 1, 2, 1]


def test_shifts_beyond_the_width_give_zero():
    for run in (interpreted, compiled):
        left_shifted, right = run(
            lambda b, v, w: [b.binary("shift_left", v, w), b.binary("shift_right_logical", v, w)],
            np.array([-1, 1], np.int32),
            np.array([32, 40], np.int32),
        )
        assert left_shifted.tolist() == right.tolist() == [0, 0]


def test_booleans():
    x, y = np.array([True, True, False, False]), np.array([True, False, True, False])
    for run in (interpreted, compiled):
        results = run(
            lambda b, v, w: [b.and_(v, w), b.or_(v, w), b.binary("xor", v, w), b.not_(v), b.add(v, w), b.mul(v, w)],
            x,
            y,
        )
        for actual, want in zip(results, [x & y, x | y, x ^ y, ~x, x | y, x & y], strict=True):
            assert_close(actual, want)


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
def test_compare(direction):
    function = getattr(
        np,
        {"EQ": "equal", "NE": "not_equal", "LT": "less", "LE": "less_equal", "GT": "greater"}.get(
            direction, "greater_equal"
        ),
    )
    pairs = [
        (np.array([1.0, np.nan, -0.0, np.inf]), np.array([1.0, np.nan, 0.0, 1.0])),
        (np.array([1, -1, 3]), np.array([1, 1, 2])),
        (np.array([1, 255, 3], np.uint8), np.array([1, 1, 4], np.uint8)),
        (np.array([True, False]), np.array([False, False])),
    ]
    for x, y in pairs:
        (actual,) = interpreted(lambda b, v, w: b.compare(direction, v, w), x, y)
        assert_close(actual, function(x, y))


def test_select_and_clamp_take_0d_operands():
    x = np.array([-3.0, 0.5, np.nan, 9.0], np.float32)
    for run in (interpreted, compiled):
        chosen, clamped, mixed = run(
            lambda b, p, v, lo, hi: [
                b.select(p, v, b.neg(v)),
                b.clamp(lo, v, hi),
                b.clamp(lo, v, b.broadcast_to(hi, (4,))),
            ],
            np.array(False),
            x,
            np.float32(-1),
            np.float32(1),
        )
        assert_close(chosen, -x)
        assert_close(clamped, np.clip(x, -1, 1))
        assert_close(mixed, np.clip(x, -1, 1))


CONVERSIONS = [
    (np.array([1.9, -1.9, 0.0]), np.int32, [1, -1, 0]),
    (np.array([0.5, 0.0, np.nan, -2.0]), np.bool_, [True, False, True, True]),
    (np.array([3, 0, -1]), np.bool_, [True, False, True]),
    (np.array([True, False]), np.float32, [1.0, 0.0]),
    (np.array([True, False]), np.int64, [1, 0]),
    (np.array([1 + 2j, 0j, 0 + 1j]), np.bool_, [True, False, True]),
    (np.array([1 + 2j, -3j]), np.float64, [1.0, 0.0]),
    (np.array([1.5 + 2j]), np.int32, [1]),
    (np.array([1.5]), np.complex64, [1.5 + 0j]),
    (np.array([7, -2]), np.complex128, [7, -2]),
    (np.array([True]), np.complex64, [1]),
    (np.array([1 + 2**-9, 3.0], np.float32), ml_dtypes.bfloat16, [1.0, 3.0]),
    (np.array([-1, 3], np.int32), np.int8, [-1, 3]),
    (np.array([2**40 + 5], np.uint64), np.uint32, [5]),
]


@pytest.mark.parametrize(("x", "dtype", "expected"), CONVERSIONS)
def test_convert(x, dtype, expected):
    from tests.lowering.harness import NAMES

    for run in (interpreted, compiled):
        (actual,) = run(lambda b, v: b.convert(v, NAMES[np.dtype(dtype)]), x)
        assert_close(actual, np.array(expected).astype(dtype))


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_bits(run):
    x = np.array([[1.0, -2.0], [np.inf, 0.0]], np.float32)
    as_integers, halves, back = run(
        lambda b, v: [
            b.bitcast_convert(v, "i32"),
            b.bitcast_convert(v, "ui16"),
            b.bitcast_convert(b.bitcast_convert(v, "ui16"), "f32"),
        ],
        x,
    )
    assert_close(as_integers, x.view(np.int32))
    assert_close(halves, x.view(np.uint16).reshape(2, 2, 2))
    assert_close(back, x)


def test_bits_reinterpreted_several_times():
    """XLA merges two bitcast_converts into one, and cannot if the first adds dimensions that the second removes, or if
    each adds one."""
    kinds = {8: "ui8", 16: "bf16", 32: "f32", 64: "i64"}

    def build(b, x):
        results = []
        for chain in itertools.permutations(kinds.values(), 3):
            y = b.bitcast_convert(b.add(x, x), chain[0], (4, 64 // bitwidth(chain[0])) if chain[0] != "i64" else (4,))
            for dtype in chain[1:]:
                before, after = bitwidth(dtype_of(y)), bitwidth(dtype)
                if before < after:
                    y = b.reshape(y, (32 // (after // 8), after // before))
                y = b.bitcast_convert(y, dtype)
            results.append(b.bitcast_convert(y, "ui8") if dtype_of(y) != "ui8" else y)
        return [b.reshape(y, (32,)) for y in results]

    x = np.array([1, -5, 1 << 40, 0x3F803F80])
    for actual in compiled(build, x):
        assert_close(actual, (x + x).view(np.uint8))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers(dtype):
    z = np.array([1 + 2j, -0.5 + 0.25j, 0.3 - 1j], dtype)
    names = {"exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "tanh": np.tanh, "acos": np.arccos}
    for run in (interpreted, compiled):
        results = run(
            lambda b, v: [
                b.unary("real", v),
                b.unary("imag", v),
                b.abs(v),
                b.binary("complex", b.unary("imag", v), b.unary("real", v)),
                b.mul(v, v),
                b.div(v, b.add(v, v)),
                *(b.unary(n, v) for n in names),
            ],
            z,
        )
        expected = [
            z.real,
            z.imag,
            np.abs(z),
            z.imag + 1j * z.real,
            z * z,
            z / (z + z),
            *(f(z) for f in names.values()),
        ]
        for actual, want in zip(results, expected, strict=True):
            assert_close(actual, want.astype(actual.dtype), factor=4)


def test_is_finite():
    (actual,) = interpreted(lambda b, v: b.unary("is_finite", v), np.array([1.0, np.inf, -np.inf, np.nan]))
    assert actual.tolist() == [True, False, False, False]


@pytest.mark.parametrize("run", [compiled, interpreted])
def test_infinity_times_false_is_nan(run):
    x = np.array([np.inf, -np.inf, np.nan, 2.0], np.float32)
    (actual,) = run(lambda b, v, p: b.mul(v, b.convert(p, "f32")), x, np.zeros(4, bool))
    assert_close(actual, np.array([np.nan, np.nan, np.nan, 0.0], np.float32))


def test_float64_ops_that_a_tpu_lacks_are_expanded():
    def build(b, x):
        return [b.bitcast_convert(x, "i64"), b.div(b.div(x, x), x)]

    module = module_of(build, ("f64", (2,)))
    tpu_text, cpu_text = (stablehlo_text(emit(module, platform=platform)) for platform in ("tpu", "cpu"))
    assert "(tensor<2xf64>) -> tensor<2xui64>" in tpu_text and "ui64" not in cpu_text
    assert "optimization_barrier" in tpu_text and "reduce_precision" not in tpu_text
    assert "reduce_precision" in cpu_text and "optimization_barrier" not in cpu_text


def test_tpu_has_no_complex128():
    module = module_of(lambda b, x: b.add(x, x), ("c128", (2,)))
    with pytest.raises(NotImplementedError, match="no complex128: use complex64"):
        emit(module, platform="tpu")
