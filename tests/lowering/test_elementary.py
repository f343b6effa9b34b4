"""Elementary functions are within a few units in the last place of the exact value, on the CPU."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from lazytpu.lowering import emit, stablehlo_text
from tests.lowering.harness import compiled, module_of

DTYPES = ("f32", "f64")


def exactly(function):
    """The function of mpmath with 40 digits, of each element; NaN where it is not real."""

    def of(x):
        with mpmath.workdps(40):
            values = [function(mpmath.mpf(float(v))) for v in x]
            return np.array([np.longdouble(mpmath.nstr(v, 25)) if mpmath.isfinite(v) else np.nan for v in values])

    return of


# op -> (exact function, magnitudes, signs, units in the last place)
FUNCTIONS = {
    "expm1": (exactly(mpmath.expm1), (1e-6, 60), (1, -1), 2),
    "tanh": (exactly(mpmath.tanh), (1e-6, 25), (1, -1), 2),
    "sinh": (exactly(mpmath.sinh), (1e-6, 80), (1, -1), 2),
    "cosh": (exactly(mpmath.cosh), (1e-6, 80), (1, -1), 2),
    "erf": (exactly(mpmath.erf), (1e-6, 7), (1, -1), 2.5),
    "erfc": (exactly(mpmath.erfc), (1e-6, 9), (1, -1), 3.5),
    "erf_inv": (exactly(mpmath.erfinv), (1e-6, 0.99999), (1, -1), 3),
    "digamma": (exactly(mpmath.digamma), (2, 1e4), (1,), 16),
    "lgamma": (exactly(lambda x: mpmath.log(abs(mpmath.gamma(x)))), (1e-3, 1e3), (1,), 8),
}


def ulps(got, exact):
    """The distances of numbers to exact values in units of the last place."""
    spacing = np.spacing(np.abs(exact).astype(got.dtype))
    return np.abs(got.astype(np.longdouble) - exact) / spacing


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_exact_to_a_few_last_bits(name, dtype):
    exact, (low, high), signs, allowed = FUNCTIONS[name]
    sizes = np.geomspace(low, high, 1500)
    x = np.concatenate([sign * sizes for sign in signs]).astype("float32" if dtype == "f32" else "float64")
    (got,) = compiled(lambda b, v: b.unary(name, v), x)
    assert np.nanmax(ulps(got, exact(x))) <= allowed


def test_tails_of_the_error_functions_do_not_lose_digits():
    x = np.array([1.5, 3.7, 7.7, 8.85, 9.19], np.float32)
    (got,) = compiled(lambda b, v: b.unary("erfc", v), x)
    assert np.max(ulps(got, exactly(mpmath.erfc)(x))) <= 3
    x = np.array([6.5, 15.1, 22.3, 26.0])
    (got,) = compiled(lambda b, v: b.unary("erfc", v), x)
    assert np.max(ulps(got, exactly(mpmath.erfc)(x))) <= 3
    x = np.array([0.999, 0.9999, 1 - 2.0**-24], np.float32)
    (got,) = compiled(lambda b, v: b.unary("erf_inv", v), x)
    assert np.max(ulps(got, exactly(mpmath.erfinv)(x))) <= 3


def test_zeros_of_digamma_and_lgamma_do_not_lose_digits_in_f32():
    x = np.array([1.4616321, 1.4, 1.5, -0.504083, -2.456929922103882, -4.040281772613525], np.float32)
    (psi, gamma) = compiled(lambda b, v: [b.unary("digamma", v), b.unary("lgamma", v)], x)
    assert np.max(ulps(psi, exactly(mpmath.digamma)(x))) <= 1
    assert np.max(ulps(gamma, exactly(lambda v: mpmath.log(abs(mpmath.gamma(v))))(x))) <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("name", "of_inf", "of_minus_inf"),
    [("expm1", math.inf, -1), ("tanh", 1, -1), ("sinh", math.inf, -math.inf), ("cosh", math.inf, math.inf),
     ("erf", 1, -1), ("erfc", 0, 2), ("erf_inv", math.nan, math.nan)],
)  # fmt: skip
def test_special_values_and_signs_of_zero(name, of_inf, of_minus_inf, dtype):
    x = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1000, -1000], dtype)
    (got,) = compiled(lambda b, v: b.unary(name, v), x)
    np.testing.assert_array_equal(got[[0, 1, 2, 5, 6]], [math.nan, of_inf, of_minus_inf, of_inf, of_minus_inf])
    at_zero = 1 if name in ("cosh", "erfc") else 0
    np.testing.assert_array_equal(got[3:5], at_zero)
    if not at_zero:
        np.testing.assert_array_equal(np.signbit(got[3:5]), [False, True])


def test_inverse_error_function_is_infinite_at_one():
    x = np.array([1, -1, 1.5], np.float64)
    (got,) = compiled(lambda b, v: b.unary("erf_inv", v), x)
    np.testing.assert_array_equal(got, [math.inf, -math.inf, math.nan])


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
def test_other_platforms_use_their_own_functions(platform):
    module = module_of(lambda b, x: [b.unary(name, x) for name in ("tanh", "expm1", "erf")], ("f32", (8,)))
    text = stablehlo_text(emit(module, platform=platform))
    assert all(op in text for op in ("stablehlo.tanh", "stablehlo.exponential_minus_one", "chlo.erf"))


def test_bessel_functions_of_f32_do_not_lose_digits_near_their_zeros():
    x = np.array([2.4, 5.52, 8.65, 100.5, 1000.3], np.float32)
    (got,) = compiled(lambda b, v: b.template("bessel_j0", [v], [("f32", x.shape)]), x)
    assert np.max(ulps(got, exactly(lambda v: mpmath.besselj(0, v))(x))) <= 1


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", ["sinh", "cosh", "tan", "tanh"])
def test_complex_function_is_exact_to_a_few_last_bits(name, dtype):
    rng = np.random.default_rng(0)
    x = ((rng.standard_normal(500) + 1j * rng.standard_normal(500)) * np.geomspace(1e-3, 9, 500)).astype(dtype)
    (got,) = compiled(lambda b, v: b.unary(name, v), x)
    for v, r in zip(x, got, strict=True):
        with mpmath.workdps(40):
            exact = getattr(mpmath, name)(mpmath.mpc(complex(v)))
            error = abs(mpmath.mpc(complex(r)) - exact) / abs(exact)
        assert error <= 3 * np.finfo(dtype).eps


def test_complex_sinh_keeps_small_real_parts():
    x = np.array([1e-20 + 1.5j, 1e-20 - 90j], np.complex64)
    (got,) = compiled(lambda b, v: b.unary("sinh", v), x)
    np.testing.assert_allclose(got.real, np.array([7.073720e-22, -4.480736e-21], np.float32), rtol=1e-6)
