"""Pairs of ops that XLA would rewrite have the values of the separate ops, also in a fusion."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import lazytpu

BIG, SMALL = 1e30, 1e-30
# Functions of two numbers, for which XLA's rewrite would give 0, an infinity or NaN.
PAIRS: dict[str, tuple[Callable[..., torch.Tensor], float, float]] = {
    "quotient divided": (lambda a, b: (a / b) / b, BIG, 1e20),
    "divided by a quotient": (lambda a, b: a / (b / b), BIG, 1e20),
    "quotient of one summed": (lambda a, b: (a / b)[:, None].sum(1) / b, BIG, 1e20),
    "divided by a power": (lambda a, b: a / b.pow(a), -2.0, SMALL),
    "log of exp": (lambda a, b: a.exp().log() == b, 100.0, float("inf")),
    "log of a power": (lambda a, b: a.pow(b).log() == float("inf"), BIG, 3.0),
    "product of exps": (lambda a, b: (a.exp() * b.exp()).isnan(), 200.0, -200.0),
    "quotient of exps": (lambda a, b: (a.exp() / b.exp()).isnan(), 200.0, 199.0),
    "root of a square": (lambda a, b: (a * a).sqrt() == b, BIG, float("inf")),
}


@pytest.mark.parametrize("name", PAIRS)
def test_rewritten_pairs_have_the_values_of_separate_ops(name: str) -> None:
    function, *numbers = PAIRS[name]
    tensors = [torch.full((4,), number) for number in numbers]
    on_device = [tensor.to("tpu") for tensor in tensors]
    lazytpu.sync()
    torch.testing.assert_close(function(*on_device).cpu(), function(*tensors), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.long)], ids=str)
def test_quotients_and_their_gradients_are_bitwise_equal_in_modes(dtype: torch.dtype) -> None:
    def gradients(mode: str) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        x, s, w = (torch.rand(n, generator=generator).add(0.5).to(dtype) for n in ((64, 16), (64, 1), (64, 16)))
        with lazytpu.mode(mode):
            a, b = (tensor.to("tpu").requires_grad_() for tensor in (x, s))
            weight = w.to("tpu")
            y = a / b
            (torch.nn.functional.normalize(y) * weight + (y / b)).sum().backward()
            return [tensor.grad.cpu() for tensor in (a, b) if tensor.grad is not None]

    for fused, strict in zip(gradients("fused"), gradients("strict"), strict=True):
        assert torch.equal(fused, strict)


DIVISORS: dict[str, Callable[[torch.Tensor], torch.Tensor | float]] = {
    "a number": lambda row: row[0].item(),
    "one element": lambda row: row[0],
    "a row": lambda row: row,
    "a column, repeated": lambda row: row[:1].expand(64, 1),
    "computed of what is repeated": lambda row: row.expand(64, -1) * 1.0,
}


@pytest.mark.parametrize("mode", ["strict", "fused"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64], ids=str)
def test_quotient_is_not_a_product_with_a_reciprocal(mode: str, dtype: torch.dtype) -> None:
    """The reciprocal of each of these divisors is below the normal numbers of its dtype."""
    large = torch.finfo(dtype).max / 4
    generator = torch.Generator().manual_seed(0)
    x, row = (torch.rand(n, generator=generator, dtype=torch.float64) * large + large for n in ((64, 9), (9,)))
    x, row = x.to(dtype), row.to(dtype)
    with lazytpu.mode(mode):
        on_device, row_on_device = x.to("tpu"), row.to("tpu")
        lazytpu.sync()
        quotients = {name: on_device / divisor(row_on_device) for name, divisor in DIVISORS.items()}
    rtol = (4 if dtype.is_complex else 1) * torch.finfo(dtype).eps
    for name, divisor in DIVISORS.items():
        torch.testing.assert_close(quotients[name].cpu(), x / divisor(row), rtol=rtol, atol=0)


# Functions of a column of -0.0, where XLA would drop the zero that is added, or make a product of the sum.
SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros on the right": lambda x: x + torch.zeros_like(x),
    "zeros on the left": lambda x: torch.zeros_like(x) + x,
    "zeros in another layout": lambda x: x + torch.zeros(1, len(x), dtype=x.dtype, device=x.device).t(),
    "zeros of two parts": lambda x: x + torch.cat([torch.zeros_like(x)[:1], torch.zeros_like(x)[1:]]),
    "a sum of zeros": lambda x: x + torch.zeros_like(x).sum(),
    "one minus one": lambda x: x + (torch.ones_like(x) - 1),
    "a product added": lambda x: torch.addcmul(torch.zeros_like(x), x, torch.ones_like(x)),
    "-0.0 subtracted": lambda x: x - torch.full_like(x, -0.0),
    "-0.0 added": lambda x: x + torch.full_like(x, -0.0),
    "one term": lambda x: x.sum(1),
    "one element": lambda x: x[:1].sum(),
    "one term, its mean": lambda x: x.mean(1),
    "one term, running": lambda x: x.cumsum(1),
    "a trace": lambda x: x[:1].trace(),
    "repeated": lambda x: x.expand(-1, 3).sum(1),
    "repeated rows": lambda x: x[:, 0].expand(3, -1).sum(0),
    "one term and zeros": lambda x: torch.cat([x[:1], torch.zeros_like(x[:1])]).sum(0),
    "one term among zeros": lambda x: F.pad(x, (1, 2)).sum(1),
    "a gradient of one term": lambda x: (
        torch.zeros_like(x).index_copy(0, torch.tensor([2], device=x.device), x[:1]).sum(0)
    ),
    "repeated constants": lambda x: torch.full((3, 5), -0.0, dtype=x.dtype, device=x.device).sum(0),
    "one index": lambda x: torch.zeros_like(x).index_add(0, torch.zeros(1, dtype=torch.long, device=x.device), x[:1]),
    "many indices": lambda x: torch.zeros_like(x).index_add(0, torch.arange(len(x), device=x.device), x),
}
POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "means of one": lambda x: F.avg_pool2d(x, 1),
    "means of two": lambda x: F.avg_pool2d(x, (2, 1), 1),
    "maxima": lambda x: F.max_pool2d(x, (2, 1), 2),
    "overlapping maxima": lambda x: F.max_pool2d(x, (2, 1), 1),
}


def signs(x: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).cpu().signbit()


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("lazy", d) for d in (torch.float32, torch.bfloat16, torch.float64, torch.complex64)]
    + [("strict", torch.float32)],
    ids=str,
)
def test_sums_of_negative_zeros_have_the_cpus_sign(mode: str, dtype: torch.dtype) -> None:
    x = torch.full((6, 1), complex(-0.0, -0.0) if dtype.is_complex else -0.0, dtype=dtype)
    with lazytpu.mode(mode):
        on_device = x.to("tpu")
        sums = {name: f(on_device) for name, f in SUMS.items()}  # in lazy mode one program
        lazytpu.sync()
    assert [name for name, f in SUMS.items() if not torch.equal(signs(sums[name]), signs(f(x)))] == []


@pytest.mark.parametrize("name", POOLS)
def test_pools_of_negative_zeros_have_the_cpus_sign(name: str) -> None:
    def signs_of(device: str) -> list[torch.Tensor]:
        x = torch.full((1, 8, 1), -0.0, device=device, requires_grad=True)
        y = POOLS[name](x)
        (gradient,) = torch.autograd.grad(y, x, torch.full_like(y, -0.0))
        return [signs(y), signs(gradient)]

    for got, want in zip(signs_of("tpu"), signs_of("cpu"), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1.5])
def test_sums_with_zeros_keep_other_numbers(number: float) -> None:
    x = torch.full((6, 1), number)
    on_device = x.to("tpu")
    sums = {name: f(on_device) for name, f in SUMS.items()}
    for name, f in SUMS.items():
        torch.testing.assert_close(sums[name].cpu(), f(x), equal_nan=True, msg=name)


@pytest.mark.parametrize("mode", ["strict", "lazy"])
def test_complex_infinities_times_one_have_a_nan(mode: str) -> None:
    x = torch.tensor([complex(math.inf, 0), complex(2, math.inf), complex(-0.0, -0.0), complex(1, 2)])
    with lazytpu.mode(mode):
        got = (x.to("tpu") * torch.ones(4, dtype=x.dtype, device="tpu")).cpu()
    want = x * torch.ones(4, dtype=x.dtype)
    assert torch.equal(torch.view_as_real(got).isnan(), torch.view_as_real(want).isnan())
    assert torch.equal(signs(got[2:]), signs(want[2:]))


def test_sums_of_repeated_elements_are_as_exact_as_the_cpus() -> None:
    x = torch.rand(4, 1, generator=torch.Generator().manual_seed(0)).add(0.5)
    want = x.double().expand(4, 3000).sum()
    assert abs(x.to("tpu").expand(4, 3000).sum().cpu() - want) <= 2 * torch.finfo(torch.float32).eps * want
