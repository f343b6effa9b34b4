"""Templates: registry, splicing, and the functions themselves against numpy."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import torch

from lazytpu.lowering import LoweringError, emit, stablehlo_text
from lazytpu.lowering.templates import registry
from lazytpu.lowering.templates.registry import TEMPLATES, find, instance, template
from tests.lowering.harness import assert_close, compiled, module_of, types_of, values


@pytest.fixture
def helper_template():
    """A template whose module has private helper functions."""

    @template("test_helper")
    def helper(x, *, upper=0.0):
        return jnp.where(x > upper, jnp.clip(x, -1, 1), x), jnp.argsort(x)

    yield "test_helper"
    del TEMPLATES["test_helper"]


def call(name, *arrays, **params):
    """The results of a template, compiled."""
    inputs = [np.asarray(a) for a in arrays]
    results = instance(name, tuple(types_of(inputs)), params).results
    return compiled(lambda b, *xs: b.template(name, list(xs), results, **params), *inputs)


def test_operands_are_computed_before_the_template_reads_them(helper_template):
    """XLA inlines the call, and XLA:CPU would recompute bfloat16 in float32 for a reduction in the template."""
    types = [("bf16", (4,)), ("i64", (4,))]
    module = module_of(lambda b, x: b.template(helper_template, [b.mul(x, x)], types), ("bf16", (4,)))
    assert stablehlo_text(emit(module, platform="cpu")).count("stablehlo.reduce_precision ") == 1
    assert "stablehlo.reduce_precision " not in stablehlo_text(emit(module, platform="tpu"))
    plain = module_of(lambda b, x: b.template(helper_template, [x], types), ("bf16", (4,)))
    assert "stablehlo.reduce_precision " not in stablehlo_text(emit(plain, platform="cpu"))


def test_splicing_renames_every_symbol(helper_template):
    types = [("f64", (4,)), ("i64", (4,))]
    module = module_of(
        lambda b, x: [
            *b.template(helper_template, [x], types),
            *b.template(helper_template, [x], types),
            *b.template(helper_template, [x], types, upper=0.5),
        ],
        ("f64", (4,)),
    )
    text = stablehlo_text(emit(module))
    names = [line.split("@")[1].split("(")[0] for line in text.splitlines() if "func.func" in line]
    assert len(names) == len(set(names))
    assert names[0] == "main"
    assert {"test_helper", "test_helper_1"} < set(names)
    assert text.count("call @test_helper(") == 2
    assert text.count("call @test_helper_1(") == 1
    assert all("private" in line for line in text.splitlines() if "func.func" in line and "@main" not in line)
    assert "mhlo.num_partitions" not in text
    assert "jax.result_info" not in text


def test_results_of_two_uses(helper_template):
    x = np.array([3.0, -2.0, 0.25])
    types = [("f64", (3,)), ("i64", (3,))]
    low, order, high, _ = compiled(
        lambda b, x: b.template(helper_template, [x], types) + b.template(helper_template, [x], types, upper=0.5), x
    )
    assert low.tolist() == [1.0, -2.0, 0.25]
    assert high.tolist() == [1.0, -2.0, 0.25]
    assert order.dtype == np.int64
    assert order.tolist() == [1, 2, 0]


def test_lowering_is_cached_by_type(helper_template):
    types = (("f64", (4,)),)
    assert instance(helper_template, types, {"upper": 1.0}) is instance(helper_template, types, {"upper": 1.0})
    assert instance(helper_template, types, {"upper": 1.0}) is not instance(helper_template, types, {"upper": 1})


def test_64_bit_types_are_on_only_inside(helper_template):
    before = jax.config.jax_enable_x64
    lowered = instance(helper_template, (("f64", (2, 2)),), {})
    assert lowered.results == (("f64", (2, 2)), ("i64", (2, 2)))
    assert jax.config.jax_enable_x64 == before
    assert jnp.ones(2, jnp.float32).dtype == jnp.float32


def test_unknown_template_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no template 'cholsky'; the templates are .*cholesky"):
        find("cholsky")


def test_name_is_registered_once(helper_template):
    with pytest.raises(ValueError, match="registered twice"):
        template(helper_template)(lambda x: x)


def test_declared_results_are_checked(helper_template):
    with pytest.raises(LoweringError, match=r"test_helper returns .*'i64'.* but the op declares"):
        emit(module_of(lambda b, x: b.template(helper_template, [x], [("f64", (4,))] * 2), ("f64", (4,))))


def test_every_file_is_found():
    for family in registry.FAMILIES:
        importlib.import_module(f"lazytpu.lowering.templates.{family}")
    assert {"fft", "linalg", "special"} <= set(registry.FAMILIES)
    assert {"fft", "qr", "igamma"} <= set(TEMPLATES)


# The functions


def test_fft():
    z, x = values("c64", (3, 4, 8)), values("f64", (3, 8))
    assert_close(call("fft", z, kind="fft", lengths=(4, 8))[0], np.fft.fftn(z, axes=(1, 2)).astype(np.complex64), 20)
    assert_close(call("fft", z, kind="ifft", lengths=(8,))[0], (8 * np.fft.ifft(z)).astype(np.complex64), 20)
    assert_close(call("fft", x, kind="rfft", lengths=(8,))[0], np.fft.rfft(x), 20)
    spectrum = np.fft.rfft(x)
    assert_close(call("fft", spectrum, kind="irfft", lengths=(8,))[0], 8 * np.fft.irfft(spectrum, 8), 20)


@pytest.mark.parametrize("dtype", ["f32", "f64", "c64"])
def test_factorizations(dtype):
    a = values(dtype, (2, 4, 4))
    spd = a @ a.conj().swapaxes(-1, -2) + 4 * np.eye(4, dtype=a.dtype)
    tall = values(dtype, (5, 3))
    lower, info = call("cholesky", spd)
    assert_close(lower, np.linalg.cholesky(spd), 100)
    assert not info.any()
    q, r = call("qr", tall)
    assert_close(q @ r, tall, 100)
    assert call("qr", tall, full=True)[0].shape == (5, 5)
    u, s, vh = call("svd", tall)
    assert_close((u * s) @ vh, tall, 100)
    assert_close(call("svdvals", tall)[0], s, 100)
    long = np.eye(2, 1 << 19, dtype=a.dtype)  # a square of the longer side would need terabytes
    assert_close(call("svdvals", long)[0], np.ones(2, s.dtype), 100)
    w, v = call("eigh", spd)
    assert_close(np.asarray(spd @ v, a.dtype), v * w[:, None, :].astype(a.dtype), 500)
    factors, pivots, permutation = call("lu", a)
    unit_lower = np.tril(factors, -1) + np.eye(4, dtype=a.dtype)
    assert_close(unit_lower @ np.triu(factors), np.take_along_axis(a, permutation[..., None].astype(int), 1), 100)
    assert pivots.dtype == np.int32
    b = values(dtype, (2, 4, 3), seed=5)
    (solved,) = call("triangular_solve", lower, b)
    assert_close(lower @ solved, b, 100)
    (right,) = call("triangular_solve", lower, b.swapaxes(-1, -2).copy(), left=False, transpose=True, conjugate=True)
    assert_close(right @ lower.conj().swapaxes(-1, -2), b.swapaxes(-1, -2), 100)
    values_, vectors = call("eig", a)
    assert_close((a @ vectors).astype(vectors.dtype), vectors * values_[:, None, :], 500)
    reflectors, tau = call("geqrf", tall)
    assert_close(np.abs(call("householder_product", reflectors, tau)[0]), np.abs(q), 100)


def test_cholesky_of_an_indefinite_matrix_reports_the_minor():
    factor, info = call("cholesky", np.diag([4.0, -1.0]))
    assert info == 2
    assert_close(factor, np.diag([2.0, -1.0]), 1)


def test_special_functions():
    x, y = np.array([0.3, 1.0, 2.5]), np.array([0.5, 2.0, 7.0])
    unit = np.array([0.1, 0.5, 0.9])
    for name, arguments, expected in [
        ("igamma", (x, y), scipy.special.gammainc(x, y)),
        ("igammac", (x, y), scipy.special.gammaincc(x, y)),
        ("betainc", (x, y, unit), scipy.special.betainc(x, y, unit)),
        ("bessel_i0", (x,), scipy.special.i0(x)),
        ("bessel_i0e", (x,), scipy.special.i0e(x)),
        ("bessel_i1", (x,), scipy.special.i1(x)),
        ("ndtri", (unit,), scipy.special.ndtri(unit)),
        ("log_ndtr", (-10 * x,), scipy.special.log_ndtr(-10 * x)),
    ]:
        np.testing.assert_allclose(call(name, *arguments)[0], expected, rtol=1e-8, err_msg=name)


def test_cumulative_logsumexp():
    x = values("f32", (3, 20))
    assert_close(call("cumulative_logsumexp", x, dim=1)[0], torch.logcumsumexp(torch.from_numpy(x), 1).numpy(), 10)


def test_samplers():
    key = np.array([3, 4], np.uint32)
    rate = np.full((2000,), 5.0, np.float32)
    (numbers,) = call("poisson", key, rate)
    assert numbers.dtype == np.float32
    assert abs(numbers.mean() - 5) < 0.3
    (gamma,) = call("standard_gamma", key, rate)
    assert abs(gamma.mean() - 5) < 0.3
    (gradient,) = call("standard_gamma_grad", rate, gamma)
    expected = torch._standard_gamma_grad(torch.from_numpy(rate), torch.from_numpy(gamma)).numpy()
    np.testing.assert_allclose(gradient, expected, rtol=2e-3)
