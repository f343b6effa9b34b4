"""Numbers that the CPU rejects: the same error at the call, whatever was recorded before; the trace stays intact."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import lazytpu

INTEGER, FLOAT = torch.int8, torch.float32


def empty(device: str, dtype: torch.dtype = FLOAT) -> torch.Tensor:
    return torch.zeros(3, dtype=dtype, device=device)


# Takes a device; the CPU rejects it.
DISTRIBUTIONS: dict[str, Callable[[str], Any]] = {
    "bernoulli_": lambda d: empty(d).bernoulli_(1.5),
    "cauchy_": lambda d: empty(d).cauchy_(0, -1),
    "exponential_": lambda d: empty(d).exponential_(0),
    "exponential_ nan": lambda d: empty(d).exponential_(math.nan),
    "geometric_": lambda d: empty(d).geometric_(1),
    "log_normal_": lambda d: empty(d).log_normal_(0, -2),
    "normal_": lambda d: empty(d).normal_(0, -1),
    "normal": lambda d: torch.normal(empty(d), -1.0),
    "normal of sizes": lambda d: torch.normal(0.0, -1.0, (2,), device=d),
    "normal_ of integers": lambda d: empty(d, torch.int64).normal_(0, 1),
    "uniform_": lambda d: empty(d).uniform_(2, 1),
    "uniform_ too far": lambda d: empty(d, torch.float16).uniform_(0, 1e6),
    "random_": lambda d: empty(d).random_(3, 3),
    "random_ to": lambda d: empty(d, INTEGER).random_(300),
    "random_ from": lambda d: empty(d, torch.uint8).random_(-1, 4),
    "randint": lambda d: torch.randint(3, 3, (2,), device=d),
    "randint too far": lambda d: torch.randint(0, 300, (2,), dtype=INTEGER, device=d),
    "randint_like": lambda d: torch.randint_like(empty(d), 3, 2),
    "randperm": lambda d: torch.randperm(300, dtype=INTEGER, device=d),
    "randperm of halves": lambda d: torch.randperm(3000, dtype=torch.float16, device=d),
    "randperm of truths": lambda d: torch.randperm(2, dtype=torch.bool, device=d),
    "randperm of none": lambda d: torch.randperm(-1, device=d),
    "multinomial of integers": lambda d: torch.multinomial(empty(d, INTEGER), 1),
    "multinomial of none": lambda d: torch.multinomial(empty(d), 0),
    "multinomial of too many": lambda d: torch.multinomial(empty(d), 4),
    "multinomial of a block": lambda d: torch.multinomial(torch.ones(1, 2, 3, device=d), 1),
    "binomial": lambda d: torch.binomial(empty(d), empty(d, torch.float64)),
}
CONVERSIONS: dict[str, Callable[[str], Any]] = {
    "sub of a truth": lambda d: empty(d) - empty(d, torch.bool),
    "sub of a mask": lambda d: empty(d, torch.bool).sub(empty(d), alpha=2),
    "sub of truths": lambda d: empty(d, torch.bool) - empty(d, torch.bool),
    "sub_ of truths": lambda d: empty(d, torch.bool).sub_(empty(d, torch.bool)),
    "rsub of a mask": lambda d: 1 - empty(d, torch.bool),
    "fill_": lambda d: empty(d, INTEGER).fill_(300),
    "fill_ below": lambda d: empty(d, torch.uint8).fill_(-256),
    "fill_ nan": lambda d: empty(d, torch.int64).fill_(math.nan),
    "fill_ of floats": lambda d: empty(d).fill_(1e50),
    "fill_ complex": lambda d: empty(d).fill_(1j),
    "full": lambda d: torch.full((2,), 300, dtype=INTEGER, device=d),
    "full_like": lambda d: torch.full_like(empty(d, INTEGER), 300),
    "new_full": lambda d: empty(d, INTEGER).new_full((2,), -200),
    "scalar_tensor": lambda d: torch.scalar_tensor(300, dtype=INTEGER, device=d),
    "masked_fill": lambda d: empty(d, INTEGER).masked_fill(empty(d, torch.bool), 300),
    "index_fill_": lambda d: empty(d, INTEGER).index_fill_(0, torch.zeros(1, dtype=torch.int64, device=d), 300),
    "scatter": lambda d: empty(d, INTEGER).scatter(0, torch.zeros(1, dtype=torch.int64, device=d), 300),
    "clamp": lambda d: empty(d, INTEGER).clamp(max=300),
    "clamp_ of halves": lambda d: empty(d, torch.float16).clamp_(max=1e10),
    "pow": lambda d: empty(d, INTEGER).pow(300),
    "threshold": lambda d: torch.nn.functional.threshold(empty(d, INTEGER), 300, 2),
    "pad": lambda d: torch.nn.functional.pad(empty(d, INTEGER), (1, 1), value=300),
    "linspace": lambda d: torch.linspace(0, 300, 4, dtype=INTEGER, device=d),
    "foreach": lambda d: torch._foreach_clamp_max([empty(d, INTEGER)], 300),
}
PARTS: dict[str, Callable[[str], Any]] = {
    "complex of integers": lambda d: torch.complex(empty(d), empty(d, torch.int32)),
    "complex of two dtypes": lambda d: torch.complex(empty(d), empty(d, torch.float64)),
    "polar of two dtypes": lambda d: torch.polar(empty(d), empty(d, torch.float64)),
    "heaviside": lambda d: torch.heaviside(empty(d), empty(d, torch.float64)),
}
REFUSED = {**DISTRIBUTIONS, **CONVERSIONS, **PARTS}


@pytest.mark.parametrize("name", REFUSED, ids=str)
def test_refused_as_on_the_cpu(name: str) -> None:
    with pytest.raises(Exception) as expected:
        REFUSED[name]("cpu")
    before = torch.arange(3, device="tpu") + 1
    with pytest.raises(expected.type) as got:
        REFUSED[name]("tpu")
    assert str(got.value) == str(expected.value)
    assert before.tolist() == [1, 2, 3]


def _gradient(x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    function(leaf.clone()).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


LATER: dict[str, tuple[Callable[[torch.Tensor, Any], torch.Tensor], Any, Any]] = {
    "leaky_relu_": (lambda x, slope: _gradient(x, lambda leaf: functional.leaky_relu_(leaf, slope)), 0.5, -2.0),
    "leaky_relu_ nan": (lambda x, slope: _gradient(x, lambda leaf: functional.leaky_relu_(leaf, slope)), 0.5, math.nan),
    "elu_": (lambda x, alpha: _gradient(x, lambda leaf: functional.elu_(leaf, alpha)), 0.5, -2.0),
    "rrelu_": (lambda x, lower: _gradient(x, lambda leaf: functional.rrelu_(leaf, lower, 0.4)), 0.1, -5.0),
    "celu": (functional.celu, 1.0, 0.0),
    "smooth_l1_loss": (lambda x, beta: functional.smooth_l1_loss(x, x * 0, beta=beta), 1.0, -1.0),
    "mvlgamma": (lambda x, p: torch.mvlgamma(x.abs() + 5, p), 2, 0),
}


@pytest.mark.parametrize("name", LATER)
def test_a_later_number_is_refused_as_on_the_cpu(name: str) -> None:
    function, valid, wrong = LATER[name]
    x = torch.tensor([-1.0, 2.0])
    torch.testing.assert_close(function(x.to("tpu"), valid).cpu(), function(x, valid))
    with pytest.raises(RuntimeError) as expected:
        function(x, wrong)
    with pytest.raises(RuntimeError) as got:
        function(x.to("tpu"), wrong)
    assert str(got.value) == str(expected.value)


def test_numbers_are_checked_at_every_call() -> None:
    x = torch.zeros(4, device="tpu")
    x.normal_(0.0, 1.0)
    lazytpu.sync()
    with pytest.raises(RuntimeError, match="normal expects std >= 0"):
        x.normal_(0.0, -1.0)
    y = torch.zeros(4, dtype=INTEGER, device="tpu")
    y.fill_(100)
    lazytpu.sync()
    with pytest.raises(RuntimeError, match="cannot be converted to type int8_t"):
        y.fill_(200)
    assert y.tolist() == [100] * 4


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_a_number_that_overflows_is_refused_of_any_size_but_one(device: str) -> None:
    for shape in ((0,), (3,), (2, 2)):
        with pytest.raises(RuntimeError, match="without overflow"):
            torch.full(shape, 1e30, dtype=torch.float16, device=device)
    for shape in ((), (1,), (1, 1)):
        torch.full(shape, 1e30, dtype=torch.float16, device=device)


def test_the_checks_draw_nothing() -> None:
    state = torch.get_rng_state()
    torch.zeros(40, device="tpu").normal_(1.0, 2.0)
    torch.randint(0, 9, (40,), device="tpu")
    torch.zeros(40, device="tpu").geometric_(0.25)
    assert torch.equal(torch.get_rng_state(), state)


WRAPPED: dict[str, Callable[[str], torch.Tensor]] = {
    "add": lambda d: empty(d, INTEGER) + 300,
    "mul": lambda d: (empty(d, INTEGER) + 1) * 301,
    "fill_ unsigned": lambda d: empty(d, torch.uint8).fill_(-1),
    "fill_ cut": lambda d: empty(d, INTEGER).fill_(2.7),
    "fill_ of truths": lambda d: empty(d, torch.bool).fill_(math.nan),
    "fill_ of one half": lambda d: torch.zeros(1, dtype=torch.float16, device=d).fill_(1e10),
    "fill_ infinite": lambda d: empty(d).fill_(-math.inf),
    "scatter": lambda d: empty(d, torch.int64).scatter(0, torch.zeros(1, dtype=torch.int64, device=d), 2.5),
    "greater": lambda d: empty(d, torch.uint8) > -1,
    "remainder": lambda d: (empty(d, INTEGER) + 7).remainder(300),
    "full empty": lambda d: torch.full((0,), 3.5, dtype=INTEGER, device=d),
    "normal_ empty": lambda d: torch.zeros(0, dtype=torch.int64, device=d).normal_(),
}


def test_numbers_that_wrap_or_are_cut() -> None:
    got = {name: make("tpu") for name, make in WRAPPED.items()}
    lazytpu.sync()
    for name, make in WRAPPED.items():
        torch.testing.assert_close(got[name].cpu(), make("cpu"), msg=name)


LATE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "bernoulli": torch.bernoulli,
    "bernoulli_": lambda p: torch.empty_like(p).bernoulli_(p),
    "poisson": torch.poisson,
    "multinomial": lambda p: torch.multinomial(p, 1),
    "normal": lambda p: torch.normal(0.0, p),
}


@pytest.mark.parametrize("name", LATE, ids=str)
def test_values_are_checked_by_the_next_read(name: str) -> None:
    LATE[name](torch.tensor([0.5, 1.0], device="tpu")).tolist()
    for bad in (-1.0, math.nan):
        with pytest.raises(RuntimeError):
            LATE[name](torch.tensor([0.5, bad]))
        drawn = LATE[name](torch.tensor([0.5, bad], device="tpu"))
        with pytest.raises(RuntimeError):
            drawn.tolist()


def test_warnings_come_once_at_each_call() -> None:
    """The first call of a dtype asks the CPU about more than the numbers, and warns no more often."""
    calls = (
        (lambda x: x.random_(0, 1 << 25), "to - 1 is out of bounds"),
        (lambda x: x.random_((1 << 25) + 1), "to - 1 is out of bounds"),
        (lambda x: x.random_(-(1 << 25) - 1, 5), "from is out of bounds"),
        (lambda x: torch.randint(0, 1 << 25, (3,), dtype=x.dtype, device=x.device), "to - 1 is out of bounds"),
        (lambda x: torch.randint_like(x, 1 << 25), "to - 1 is out of bounds"),
    )
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.empty(3, device="tpu", dtype=dtype)
        for call, message in calls:
            for _ in range(2):
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    call(x)
                assert [message in str(warning.message) for warning in said] == [True]
