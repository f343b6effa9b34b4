"""Pairs of ops that XLA would rewrite have the values of the separate ops, also in a fusion."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

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
