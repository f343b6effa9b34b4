"""Special functions at their limits, through the whole pipeline and with gradients, against torch's CPU."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch

special: Any = torch.special
POSITIVE = [0.0, -0.0, 1e-3, 0.5, 1.0, 2.0, 50.0, 1e3, inf, -inf, nan, -1.0]


def pairs(first: list[float], second: list[float], dtype: torch.dtype) -> list[torch.Tensor]:
    grid = torch.meshgrid(*[torch.tensor(x, dtype=torch.float64).to(dtype) for x in (first, second)], indexing="ij")
    return [x.contiguous() for x in grid]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [special.gammainc, special.gammaincc], ids=lambda f: f.__name__)
def test_incomplete_gamma_functions(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    """The CPU's own error at a = x = 50 is 5e-10, and the error of float32 is large for small a."""
    a, x = pairs(POSITIVE, POSITIVE, dtype)
    ours = function(a.to("tpu"), x.to("tpu")).cpu()
    expected = function(a.double(), x.double()).to(dtype)
    rtol = 1e-6 if dtype is torch.float32 else 1e-9
    torch.testing.assert_close(ours, expected, rtol=rtol, atol=0, equal_nan=True)


def test_upper_incomplete_gamma_of_small_orders() -> None:
    """a E1(x) in the limit, where the CPU drops Euler's constant."""
    x = torch.tensor([1e-3, 0.5, 1.0], dtype=torch.float64)
    expected = 1e-12 * torch.tensor([6.331539364138, 0.5597735947761, 0.2193839343955], dtype=torch.float64)
    ours = special.gammaincc(torch.full_like(x, 1e-12).to("tpu"), x.to("tpu")).cpu()
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeta_of_large_orders_and_far_away(dtype: torch.dtype) -> None:
    s, q = pairs([1.5, 2.0, 50.0, 1e3, 1e5, inf, nan], [1e-30, 0.5, 1.0, 1.5, 5.0, 1e6, 1e12, inf, nan], dtype)
    ours, expected = special.zeta(s.to("tpu"), q.to("tpu")).cpu(), special.zeta(s, q)
    normal = ~(expected.abs() < torch.finfo(dtype).tiny)  # XLA takes the others for 0
    rtol = 1e-5 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(ours[normal], expected[normal], rtol=rtol, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("eps", [None, 0.0, 0.1, 0.3, 1e-6, -1.0])
def test_logit(eps: float | None, dtype: torch.dtype) -> None:
    """The bounds are rounded to the dtype, and 0 of either sign has the gradient of 0: torch's vectorised kernel, which
    single elements do not reach, gives -0 another one, from as many elements on as the processor decides."""
    values = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, 0.1, 0.3, 0.7, 0.9, -0.1, 1.1, 0.999], dtype=dtype)

    def results(x: torch.Tensor) -> list[torch.Tensor]:
        x.requires_grad_()
        y = torch.logit(x, eps)
        return [y.detach().cpu(), torch.autograd.grad(y, x, torch.ones_like(y))[0].cpu()]

    expected = [torch.cat(parts) for parts in zip(*[results(x.clone()) for x in values.split(1)], strict=True)]
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(dtype, 2e-6)
    torch.testing.assert_close(results(values.to("tpu")), expected, rtol=tolerance, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_legendre_polynomials_of_high_degree(dtype: torch.dtype) -> None:
    x, degrees = pairs([1.0, -1.0, 0.3, 1.5], [-1.0, 0.0, 1.0, 2.0, 50.0, 20_001.0, 20_002.0], dtype)
    ours = special.legendre_polynomial_p(x.to("tpu"), degrees.to("tpu")).cpu()
    expected = special.legendre_polynomial_p(x, degrees)
    assert torch.equal(ours[:2], expected[:2])
    rtol = 2e-4 if dtype is torch.float32 else 1e-10
    torch.testing.assert_close(ours, expected, rtol=rtol, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "name", ["i0", "i0e", "i1", "i1e", "bessel_j0", "bessel_j1", "modified_bessel_i1", "erfcx", "sinc"]
)
def test_zeros_have_the_sign_of_the_cpu(name: str, dtype: torch.dtype) -> None:
    """Also the errors of the gradient, where there is one."""
    function: Any = getattr(special, name)
    seen: list[list[list[bool]]] = []
    for device in ("cpu", "tpu"):
        x = torch.tensor([0.0, -0.0], dtype=dtype, device=device, requires_grad="bessel" not in name)
        y = function(x)
        slopes = torch.autograd.grad(y, x, torch.ones_like(y)) if x.requires_grad else ()
        seen.append([v.detach().signbit().tolist() for v in (y, *slopes)])
    assert seen[1] == seen[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeta_and_polygamma_at_negative_arguments(dtype: torch.dtype) -> None:
    orders, places = [2.0, 3.0, 5.0, inf], [-1e-19, -1e-5, -0.5, -1.5, -10.3, -100.7, -3.0]
    s, q = pairs(orders, places, dtype)
    rtol = 2e-6 if dtype is torch.float32 else 1e-12
    ours = special.zeta(s.to("tpu"), q.to("tpu")).cpu()
    torch.testing.assert_close(ours, special.zeta(s, q), rtol=rtol, atol=0)
    ours = torch.polygamma(2, q.to("tpu")).cpu()
    torch.testing.assert_close(ours, torch.polygamma(2, q), rtol=rtol, atol=0)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("function", [torch.sinh, torch.cosh, torch.tan, torch.tanh])
def test_complex_functions_of_extreme_numbers(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    numbers = [0.0, -0.0, 0.5, -0.5, 1e-10, 30.0, -30.0, 300.0, 1e20]
    x = torch.tensor([complex(a, b) for a in numbers for b in numbers], dtype=dtype)
    ours, expected = function(x.to("tpu").repeat(100)).cpu()[: len(x)], function(x)
    rtol = 2e-6 if dtype is torch.complex64 else 1e-14
    undefined = ours.isnan() & expected.isnan()
    for a, b in ((ours.real, expected.real), (ours.imag, expected.imag)):
        a, b = a[~undefined], b[~undefined]
        torch.testing.assert_close(a, b, rtol=rtol, atol=torch.finfo(dtype).tiny, equal_nan=True)
        zero = (a == 0) & (b == 0)
        assert torch.equal(a.signbit()[zero], b.signbit()[zero])


def test_complex_powers_that_overflow_are_infinite() -> None:
    x = torch.tensor([1e30 + 1e30j, -2e20 + 1e21j, 1e-30 + 1e-30j, 3 + 4j] * 1000)
    y = torch.tensor([3 + 1j, 2.5 - 1j, 3 + 1j, 1.5 + 0.5j] * 1000)
    ours, expected = (x.to("tpu") ** y.to("tpu")).cpu(), (x.to(torch.complex128) ** y.to(torch.complex128)).to(x.dtype)
    torch.testing.assert_close(torch.view_as_real(ours), torch.view_as_real(expected), rtol=1e-6, atol=0)


def test_integer_gradients_of_dropout_have_positive_zeros() -> None:
    grad, mask = torch.arange(-8, 8).repeat(8), torch.arange(128) % 3 > 0
    ours = torch.ops.aten.native_dropout_backward(grad.to("tpu"), mask.to("tpu"), 2.0).cpu()
    expected = torch.ops.aten.native_dropout_backward(grad, mask, 2.0)
    assert torch.equal(ours, expected) and torch.equal(ours.signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_gcd_of_the_least_integer_ends(dtype: torch.dtype) -> None:
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    numbers = torch.tensor([least, least + 1, most, most - 1, 0, 1, 6, -6, 12, 35, 100, -27], dtype=dtype)
    pairs = numbers[:, None], numbers[None]
    ours, expected = (torch.gcd(*[x.to(device) for x in pairs]).cpu() for device in ("tpu", "cpu"))
    assert ours.equal(expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_powers_of_integers_wrap_at_all_exponents(dtype: torch.dtype) -> None:
    """XLA reads six bits of an exponent."""
    info = torch.iinfo(dtype)
    bases = torch.tensor([0, 1, 2, 3, 5, info.max, info.max - 1, info.min, info.min + 1], dtype=dtype)
    exponents = [0, 1, 5, 63, 64, 65, 100, info.max - 1, info.max, *([-1, -2, info.min] if info.min else [])]
    x, y = (t.flatten() for t in torch.meshgrid(bases, torch.tensor(exponents, dtype=dtype), indexing="ij"))
    got = torch.pow(x.to("tpu"), y.to("tpu")).cpu()
    assert torch.equal(got, torch.pow(x, y))
    exact = [pow(a, b, 1 << info.bits) for a, b in zip(x.tolist(), y.tolist(), strict=True) if b >= 0]
    assert exact == [a % (1 << info.bits) for a, b in zip(got.tolist(), y.tolist(), strict=True) if b >= 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        torch.nn.functional.elu,
        torch.nn.functional.celu,
        torch.nn.functional.selu,
        torch.nn.functional.hardswish,
        torch.nn.functional.softshrink,
        torch.nn.functional.hardshrink,
    ],
    ids=lambda f: f.__name__,
)
def test_activations_of_nan_and_zeros_are_those_of_the_vectorised_loop(
    function: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    """The CPU's plain loop, for the elements past the last whole vector, differs: so each value fills vectors."""
    results = []
    for device in ("cpu", "tpu"):
        x = torch.tensor([nan, 0.0, -0.0, 0.3, -0.3, 4.0, -4.0], dtype=dtype).repeat_interleave(128)
        x = x.to(device).requires_grad_()
        y = function(x)
        y.backward(torch.ones_like(y))
        assert x.grad is not None
        results.append(torch.stack((y.detach(), x.grad)).cpu())
    torch.testing.assert_close(*results, equal_nan=True)
    zero = (results[0] == 0) & (results[1] == 0)
    assert torch.equal(*(r.signbit() & zero for r in results))
