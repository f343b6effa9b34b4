"""Ops at realistic sizes, compared by their errors with the CPU: a seeded sample of `make conformance SIZES=large`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own samples warn

SAMPLED = 6
"""For each test, the number of these ops."""
OPS = (
    "add", "amax", "argmax", "clamp", "cummax", "div.no_rounding_mode", "exp", "gather", "index_select", "lerp",
    "matmul", "max.reduction_with_dim", "mean", "neg", "nn.functional.gelu", "softmax", "sort", "sum", "tanh", "where",
)  # fmt: skip


@pytest.fixture
def as_xla():
    """Flush subnormal numbers on the CPU, and compile every trace, as in the sweep; undo both afterwards."""
    from lazytpu.engine.cutting import on_host
    from tools.conformance import large

    beside = on_host.BESIDE
    large.prepare()
    yield
    on_host.BESIDE = beside
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_ops_at_realistic_sizes(as_xla: None, dtype: str, monkeypatch: pytest.MonkeyPatch):
    import random

    from tools.conformance import large
    from tools.conformance.entries import Entry, table

    monkeypatch.setattr(large, "MAX_ELEMENTS", 70_000)
    failures = []
    for name in random.Random(dtype).sample(OPS, SAMPLED):
        if getattr(torch, dtype) in table()[name].supported_dtypes("cpu"):
            row = large.conduct(Entry(name, table()[name], getattr(torch, dtype)), 1, checks=("forward", "backward"))
            failures += [f"{name} {f['check']} of ({f['call']}): {f['message']}" for f in row.failures]
    assert not failures, "\n".join(failures)


def test_moves_keep_the_sign_of_zero():
    from tools.conformance.precision import Reference, precise

    zero, reference = torch.tensor([0.0]), Reference(torch.tensor([0.0], dtype=torch.float64))
    assert "expected to be equal" in precise(-zero, zero, reference)
    assert precise(zero, zero, reference) == ""


def test_error_may_be_twice_the_error_of_the_cpu_plus_two_ulp():
    from tools.conformance.precision import Reference, precise

    exact = torch.full((3,), 4 / 3, dtype=torch.float64)
    rounded, reference = exact.float(), Reference(exact)
    ulp = 2.0**-23
    assert precise(rounded + 2 * ulp, rounded, reference) == ""
    assert "1 of 3 elements wrong" in precise(rounded + torch.tensor([0, 0, 4 * ulp]), rounded, reference)
    assert "1 of 3" in precise(torch.tensor([4 / 3, float("nan"), 4 / 3]), rounded, reference)


def test_large_elements_do_not_excuse_small_ones():
    from tools.conformance.precision import Reference, precise

    exact = torch.logspace(-6, 6, 4097, dtype=torch.float64)
    rounded = exact.float()
    rounded[-1] *= 1.001
    wrong = exact.float()
    wrong[0] *= 1.001
    assert precise(rounded, rounded, Reference(exact)) == ""
    assert "1 of 4097" in precise(wrong, rounded, Reference(exact))


def test_error_of_float64_may_be_the_change_by_the_last_bits_of_the_inputs():
    from tools.conformance.precision import Reference, precise

    exact = torch.full((3,), 4e300 / 3, dtype=torch.float64)  # infinite in float32
    shaken = exact * (1 + 8 * 2.0**-52)
    reference = Reference(narrow=exact.float(), shaken=shaken)
    assert precise(exact * (1 + 12 * 2.0**-52), exact, reference) == ""
    assert "3 of 3" in precise(exact * (1 + 40 * 2.0**-52), exact, reference)
    assert "3 of 3" in precise(exact * (1 + 12 * 2.0**-52), exact, Reference(narrow=exact.float()))


def test_float64_must_be_finite_where_only_float32_overflows():
    from tools.conformance.precision import Reference, precise

    exact = torch.full((3,), 4e300 / 3, dtype=torch.float64)
    reference = Reference(narrow=exact.float(), shaken=exact)
    assert "3 of 3" in precise(torch.full_like(exact, float("inf")), exact, reference)


def test_sign_of_zero_counts_only_where_both_precisions_have_it():
    from tools.conformance.precision import Reference, precise

    want = torch.tensor([0.0, 1 / 3], dtype=torch.float64)
    got = torch.tensor([-0.0, 1 / 3], dtype=torch.float64)
    assert "1 of 2" in precise(got, want, Reference(narrow=want.float()))
    assert precise(got, want, Reference(narrow=torch.tensor([-0.0, 1 / 3]))) == ""


def test_results_without_a_reference_have_the_tolerances_of_the_ordinary_sweep():
    from tools.conformance.compare import Different
    from tools.conformance.entries import Entry, table
    from tools.conformance.large import enlarged

    trial = next(enlarged(Entry("std", table()["std"], torch.float32), 1))
    same: Any = trial.same
    want = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    same.references["result"] = None
    same((want * (1 + 1e-9)).to("tpu"), want, "result")
    assert same.unjudged == 1
    with pytest.raises(Different):
        same((want * 1.001).to("tpu"), want, "result")
    whole = torch.tensor([1.0, 2.0], dtype=torch.float64)  # also numbers of float32: taken for exact
    with pytest.raises(Different):
        same((whole * (1 + 1e-9)).to("tpu"), whole, "result")


def test_reference_of_a_dtype_argument_is_of_the_narrower_dtype():
    from tools.conformance.checks import gradients
    from tools.conformance.entries import Entry, table
    from tools.conformance.large import enlarged

    entry = Entry("softmax.with_dtype", table()["softmax.with_dtype"], torch.complex64)
    trial = next(enlarged(entry, 1))
    same: Any = trial.same
    (reference,) = same.reference("result")
    assert reference.narrow is not None and reference.fits(trial.reference)
    (gradient,) = same.reference("gradient 0")
    want = gradient.high
    got: Any = gradients(trial, trial.host_inputs.take(grad=True), "cpu")
    torch.testing.assert_close(got[0].to(want.dtype), want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("mean", (), {}),
        ("mean", (1, True), {}),
        ("std", (False,), {}),
        ("var", ([0, 2],), {"correction": 2}),
        ("var", (1, False, True), {}),
        ("std_mean", (), {"dim": 1, "keepdim": True}),
        ("var_mean", (True,), {}),
    ],
)
def test_extended_moments_are_those_of_torch(name: str, args: Any, kwargs: Any):
    import numpy as np

    from tools.conformance.extended import moments
    from tools.conformance.samples import tensors

    x = torch.randn(3, 4, 5, dtype=torch.float64)
    expected = tensors(getattr(torch, name)(x, *args, **kwargs))
    results = moments(name, x.numpy().astype(np.longdouble), *args, **kwargs)
    for result, want in zip(results, expected, strict=True):
        assert result.dtype == np.longdouble
        torch.testing.assert_close(torch.from_numpy(np.asarray(result, np.float64)), want)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("cumsum", (1,), {}),
        ("cumulative_trapezoid", (), {"dx": 2.0}),
        ("cumulative_trapezoid", (torch.rand(4, dtype=torch.float64),), {"dim": 1}),
        ("trapezoid", (torch.rand(3, 4, 5, dtype=torch.float64),), {"dim": 0}),
        ("trapezoid", (), {"dim": 1}),
    ],
)
def test_extended_sums_are_those_of_torch(name: str, args: Any, kwargs: Any):
    import numpy as np

    from tools.conformance.extended import SUMS

    x = torch.randn(3, 4, 5, dtype=torch.float64)
    result = SUMS[name](x.numpy(), *(a.numpy() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)
    torch.testing.assert_close(torch.from_numpy(np.asarray(result)), getattr(torch, name)(x, *args, **kwargs))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_extended_batch_norm_is_that_of_torch(training: bool, affine: bool):
    from tools.conformance.extended import batch_norm

    x, mean, *others = torch.randn(7, 3, 5, dtype=torch.float64), *torch.rand(4, 3, dtype=torch.float64)
    variance, parameters = others[0], others[1:] if affine else [None, None]
    want = torch.nn.functional.batch_norm(x, mean.clone(), variance.clone(), *parameters, training, 0.1, 1e-3)
    arguments = [None if a is None else a.numpy() for a in (x, mean, variance, *parameters)]
    result = batch_norm(*arguments, training, 0.1, 1e-3).astype("float64")
    torch.testing.assert_close(torch.from_numpy(result), want)


def test_reference_of_a_bessel_function_is_exact():
    from tools.conformance.entries import Entry, table
    from tools.conformance.extended import INEXACT
    from tools.conformance.large import enlarged

    for name in INEXACT:
        trial = next(enlarged(Entry(name, table()[name], torch.float32), 1))
        inputs: Any = trial.host_inputs
        inputs.take = lambda **_: (torch.tensor([5.5]), (), {})
        same: Any = trial.same
        (reference,) = same.reference("result")
        j0, y0 = -0.006843869417819197, -0.339480592881911
        others = {"j1": -0.34143821542913, "y1": -0.02375823895638965, "ai": 3.368531190859981e-05}
        expected = ({"j0": j0, "y0": y0} | others)[name[-2:]]
        assert abs(reference.high.item() - expected) < 1e-8


def test_reasons_are_known_only_for_their_own_differences():
    from tools.conformance.large_table import known_reason

    def reason(op: str, message: str) -> str:
        return known_reason({"op": op, "dtype": "complex64"}, {"check": "forward fused", "message": message})

    assert "factors of the length" in reason("fft.irfft", "5 elements wrong, at 5 -4.4, on the CPU nan, exactly nan")
    assert not reason("fft.irfft", "5 elements wrong, at 5 -4.4, on the CPU -4.5, exactly -4.5")
    assert "without stable=True" in reason("quantile", "2 of 12288 elements wrong, at 3483 5.37, on the CPU 0.0")
    assert "zeros of padding" in reason("nn.Conv2d", "34 of 90 elements wrong, at 3 nan, on the CPU 1.5, exactly 1.5")
    assert not reason("nn.Conv2d", "34 of 90 elements wrong, at 3 1.25, on the CPU 1.5, exactly 1.5")
    assert "overflow" in reason("ormqr", "785 of 6400 elements wrong, at 0 (nan+nanj), on the CPU (-inf+infj), exactly")
    assert not reason("ormqr", "785 of 6400 elements wrong, at 0 (nan+nanj), on the CPU (1+0j), exactly (1+0j)")
    assert "imaginary part" in reason("fft.fft", "2 of 9 elements wrong, at 1 (8+0j), on the CPU (8-0j), exactly")
    assert "LAPACK" in reason("cholesky", "160 of 1600 elements wrong, at 6 (1.9+0j), on the CPU (1.9-0j), exactly")
    assert not reason("cholesky", "160 of 1600 elements wrong, at 6 (1.8+1j), on the CPU (1.9-0j), exactly (1.9-0j)")
    error = "; 7.21e+15 ulp at 1802, allowed {}"
    ihfft = "1792 of 5376 elements wrong, at 1792 -0j, on the CPU 0j, exactly (-1.7e-16+0j)"
    assert "imaginary part" in reason("fft.ihfft", ihfft + error.format("9.2e+15"))
    assert not reason("fft.ihfft", ihfft + error.format("5.4e+15"))
    assert not reason("fft.fft", "2 of 9 elements wrong, at 1 (8+0j), on the CPU (9-0j), exactly (9-0j)")
    assert "plain loop" in reason("nn.ELU", "gradient 0: 1 of 372 elements wrong, at 310 nan, on the CPU 0.4, exactly")
    assert not reason("nn.ELU", "result: 1 of 3072 elements wrong, at 3010 nan, on the CPU 0.4, exactly 0.4")
    assert "sign of a zero" in reason("atan", "1 of 2 elements wrong, at 1 (0.7-0j), on the CPU (0.7+0j), exactly")


def test_reference_of_trigamma_is_exact():
    from tools.conformance.entries import Entry, table
    from tools.conformance.large import enlarged

    name = "polygamma.polygamma_n_0"
    trial = next(enlarged(Entry(name, table()[name], torch.float64), 1))
    inputs: Any = trial.host_inputs
    inputs.take = lambda **_: (torch.tensor([2.5], dtype=torch.float64), (1,), {})
    same: Any = trial.same
    (reference,) = same.reference("result")
    assert abs(reference.high.item() - 0.4903577561002348) < 1e-15
