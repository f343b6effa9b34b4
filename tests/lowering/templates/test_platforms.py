"""Templates with implementations by platform: all give the same results, on every test platform."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf, nan
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lazytpu.lowering.templates import convolutions, linalg, log_sums, rotations, windows
from lazytpu.lowering.templates.convolutions import ConvWindow
from tests.compiling import QUICK

WINDOWS = [
    ((2, 8, 8), windows.PoolWindow((2, 2), (2, 2), (0, 0), (0, 0), (1, 1))),
    ((2, 9, 7), windows.PoolWindow((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))),
    ((2, 9, 7), windows.PoolWindow((3, 2), (2, 1), (1, 0), (0, 1), (1, 2))),
    ((2, 7, 7), windows.PoolWindow((2, 2), (3, 3), (0, 0), (1, -1), (1, 1))),
    ((2, 5, 4, 6), windows.PoolWindow((2, 2, 3), (1, 2, 2), (1, 0, 1), (0, 0, 0), (1, 1, 1))),
]


def call(function: Callable[..., Any], *arrays: jax.Array, **params: Any) -> Any:
    """Compile as one program; separate ops would take dozens of compilations."""
    return jax.jit(partial(function, **params), compiler_options=dict(QUICK))(*arrays)


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize(("shape", "window"), WINDOWS, ids=str)
def test_max_pool(shape: tuple[int, ...], window: windows.Window) -> None:
    x = random(*shape)
    values, indices = call(windows._max_of_pairs, x, window=window)
    for got, want in zip(call(windows._max_by_dimension, x, window=window), (values, indices), strict=True):
        np.testing.assert_array_equal(got, want)
    grad = random(*values.shape, seed=1)
    variants = (windows._scattered, windows._selected, windows._gathered)
    first, *other_gradients = (call(variant, grad, x, indices, window=window) for variant in variants)
    for gradient in other_gradients:
        np.testing.assert_allclose(gradient, first, rtol=1e-6, atol=1e-6)


def test_max_pool_of_equals_and_nan() -> None:
    x = jnp.asarray(np.random.default_rng(0).choice([0.0, 1.0, -inf, nan], (4, 9, 9)), jnp.float32)
    x = x.at[0].set(-inf)
    window = windows.PoolWindow((3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
    for got, want in zip(
        call(windows._max_by_dimension, x, window=window), call(windows._max_of_pairs, x, window=window), strict=True
    ):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("shape", "window"), WINDOWS, ids=str)
@pytest.mark.parametrize("base", [1, 2])
def test_window_sum(shape: tuple[int, ...], window: windows.Window, base: int) -> None:
    x, base_dilation = random(*shape), (base,) * (len(shape) - 1)
    unrolled = call(windows._sum_by_dimension, x, window=window, base_dilation=base_dilation)
    np.testing.assert_allclose(
        unrolled, call(windows._sum, x, window=window, base_dilation=base_dilation), rtol=1e-5, atol=1e-6
    )


CONVOLUTIONS = [
    ((2, 4, 9, 8), (4, 1, 3, 3), 4, ConvWindow((2, 1), (1, 1), (1, 1), (1, 1), (1, 2))),
    ((2, 4, 9, 8), (8, 1, 3, 2), 4, ConvWindow((1, 1), (1, 0), (1, 1), (2, 1), (1, 1))),
    ((2, 6, 7, 7), (3, 2, 3, 3), 3, ConvWindow((1, 2), (1, 1), (1, 1), (1, 1), (1, 1))),
    ((2, 80, 5, 5), (80, 2, 3, 3), 40, ConvWindow((1, 1), (1, 1), (1, 1), (1, 1), (1, 1))),
    ((2, 4, 5, 6, 4), (6, 2, 3, 2, 3), 2, ConvWindow((2, 1, 1), (1, 0, 1), (0, 0, 1), (1, 2, 1), (1, 1, 1))),
    ((2, 3, 5, 6, 4), (4, 3, 3, 2, 3), 1, ConvWindow((1, 1, 1), (1, 0, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1))),
]


@pytest.mark.parametrize(("shape", "kernel", "groups", "window"), CONVOLUTIONS, ids=str)
def test_convolution(shape: tuple[int, ...], kernel: tuple[int, ...], groups: int, window: convolutions.Window) -> None:
    x, w = random(*shape), random(*kernel, seed=1)
    params = {"window": window, "groups": groups, "precision": "highest"}
    got, want = (call(implementation, x, w, **params) for implementation in (convolutions._on_cpu, convolutions._plain))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shape", "kernel", "groups", "window"), CONVOLUTIONS, ids=str)
def test_weight_gradient(
    shape: tuple[int, ...], kernel: tuple[int, ...], groups: int, window: convolutions.Window
) -> None:
    x, w = random(*shape), random(*kernel, seed=1)
    window = window._replace(lhs_dilation=(1,) * len(window.strides))
    result, pull = jax.vjp(lambda w: convolutions._plain(x, w, window, groups, "highest"), w)
    grad = random(*result.shape, seed=2)
    terms = zip(result.shape[2:], window.strides, kernel[2:], window.rhs_dilation, shape[2:], window.low, strict=True)
    high = [(o - 1) * s + (k - 1) * d + 1 - n - low for o, s, k, d, n, low in terms]
    swapped = window._replace(strides=window.rhs_dilation, rhs_dilation=window.strides, high=high)
    for implementation in (convolutions._weight_gradient, convolutions._weight_gradient_on_cpu):
        got = call(implementation, x, grad, window=swapped, groups=groups, precision="highest")
        np.testing.assert_allclose(got, pull(grad)[0], rtol=1e-4, atol=1e-3)


def matrices(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if "complex" in dtype else real).astype(dtype)


def singular(dtype: str) -> np.ndarray[Any, Any]:
    """A batch of ordinary, singular, graded, huge, tiny matrices, and one of zeros."""
    a = matrices((6, 6, 6), dtype)
    a[1, :, 3], a[1, :, 5] = a[1, :, 1], a[1, :, 0]
    a[2] *= np.logspace(0, -6, 6)
    a[3:] *= np.array([1e18, 1e-18, 0], a.real.dtype)[:, None, None]
    return a


CASES = [(matrices((1, 1), "float32"), True), (matrices((2, 2), "float32"), False), (matrices((3, 5), "float32"), True)]
CASES += [(matrices((5, 3), "float32"), False)] + [
    (singular(dtype), True) for dtype in ("float32", "complex64", "float64")
]


@pytest.mark.parametrize(("a", "full"), CASES, ids=lambda x: f"{x.dtype}{x.shape}" if isinstance(x, np.ndarray) else "")
def test_svd_by_rotations(a: np.ndarray[Any, Any], full: bool) -> None:
    """They are as accurate as LAPACK's, in the matrix's dtype: factors are unitary, even where singular values
    are 0."""
    with jax.enable_x64(True):
        u, values, vh, again = map(np.asarray, call(both, jnp.asarray(a), full=full))
    k, eps = min(a.shape[-2:]), np.finfo(a.dtype).eps
    assert (u.dtype, values.dtype, vh.dtype) == (a.dtype, a.real.dtype, a.dtype)
    want = np.linalg.svd(a.astype(np.complex128), compute_uv=False)
    largest = np.where(want[..., :1] == 0, 1, want[..., :1])
    for got in (values, again):
        np.testing.assert_allclose(got / largest, want / largest, atol=20 * eps, rtol=0)
    product = (u[..., :k] * values[..., None, :]) @ vh[..., :k, :]
    np.testing.assert_allclose(product / largest[..., None], a / largest[..., None], atol=20 * eps, rtol=0)
    for unitary in (np.swapaxes(u, -1, -2), vh):
        product = unitary @ np.conj(np.swapaxes(unitary, -1, -2))
        np.testing.assert_allclose(product, np.broadcast_to(np.eye(product.shape[-1]), product.shape), atol=50 * eps)


def both(a: jax.Array, full: bool) -> tuple[jax.Array, ...]:
    return *rotations.svd(a, full), rotations.svdvals(a)


def test_rotations_of_non_finite_matrices_end() -> None:
    a = jnp.stack([random(4, 4).at[1, 2].set(value) for value in (nan, inf)])
    assert np.isnan(call(rotations.svdvals, a)).all()


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 5), (2, 20, 20)], ids=str)
def test_lu_by_columns(shape: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        a = jnp.stack([jnp.asarray(x) for x in (matrices(shape, "float64"), np.ones(shape), np.zeros(shape))])
        for got, want in zip(call(linalg._eliminated, a), call(linalg._lu, a), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize(("platform", "wide"), [("cpu", True), ("cuda", True), ("rocm", True), ("tpu", False)])
def test_cumulative_logsumexp_uses_f64_where_it_is_native(platform: str, wide: bool) -> None:
    function = partial(log_sums.cumulative_logsumexp, dim=1)
    with jax.enable_x64(True):
        lowered = jax.jit(function).trace(random(3, 50)).lower(lowering_platforms=(platform,))
    assert ("xf64>" in lowered.as_text()) == wide
