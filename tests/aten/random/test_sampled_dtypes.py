"""Random ops of each dtype: the error of the CPU at the call, or numbers of its shape and dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

DTYPES = (
    *(
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    ),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
IN_PLACE: dict[str, list[tuple[float, ...]]] = {
    "bernoulli_": [(), (0.3,), (2.0,)],
    "exponential_": [(), (-1.0,), (0.0,)],
    "geometric_": [(0.5,), (1.5,), (0.0,), (1.0,)],
    "cauchy_": [(), (0.0, -1.0)],
    "log_normal_": [(), (0.0, -1.0)],
    "random_": [(), (10,), (2, 5), (5, 2), (0,), (-3,), (-3, 3), (0, 300), (0, 2**40), (2**40,)],
    "uniform_": [(), (2.0, 1.0), (-1e30, 1e30), (-1e300, 1e300), (0.0, float("inf")), (float("nan"), 1.0)],
    "normal_": [(), (0.0, -1.0), (0.0, 0.0)],
}


def _ones(device: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(3, device=device).to(dtype)


OPS: dict[str, Callable[[str, torch.dtype], torch.Tensor]] = {
    "rand": lambda device, dtype: torch.rand(3, dtype=dtype, device=device),
    "randn": lambda device, dtype: torch.randn(3, dtype=dtype, device=device),
    "rand_like": lambda device, dtype: torch.rand_like(_ones(device, dtype)),
    "randperm": lambda device, dtype: torch.randperm(5, dtype=dtype, device=device),
    "many of randperm": lambda device, dtype: torch.randperm(300, dtype=dtype, device=device),
    "randint": lambda device, dtype: torch.randint(2, 5, (3,), dtype=dtype, device=device),
    "large randint": lambda device, dtype: torch.randint(0, 2**40, (3,), dtype=dtype, device=device),
    "randint_like": lambda device, dtype: torch.randint_like(_ones(device, dtype), -3, 3),
    "normal of tensors": lambda device, dtype: torch.normal(_ones(device, dtype), _ones(device, dtype)),
    "normal of means": lambda device, dtype: torch.normal(_ones(device, dtype), -1.0),
    "normal of numbers": lambda device, dtype: torch.normal(0.0, 1.0, (3,), dtype=dtype, device=device),
    "bernoulli": lambda device, dtype: torch.bernoulli(_ones(device, dtype)),
    "poisson": lambda device, dtype: torch.poisson(_ones(device, dtype)),
    "binomial": lambda device, dtype: torch.binomial(_ones(device, dtype), _ones(device, dtype)),
    "multinomial": lambda device, dtype: torch.multinomial(_ones(device, dtype), 2),
    "gamma": lambda device, dtype: torch.ops.aten._standard_gamma(_ones(device, dtype)),
    "dirichlet": lambda device, dtype: torch.ops.aten._sample_dirichlet(_ones(device, dtype)),
    "rrelu": lambda device, dtype: torch.rrelu(_ones(device, dtype), training=True),
}


def _outcome(function: Callable[..., torch.Tensor], *arguments: Any) -> Any:
    try:
        drawn = function(*arguments)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
        return type(error), str(error).split("\n")[0][:80]
    return drawn.shape, drawn.dtype


def _in_place(device: str, dtype: torch.dtype, name: str, numbers: tuple[float, ...]) -> torch.Tensor:
    return getattr(_ones(device, dtype), name)(*numbers)


@pytest.mark.filterwarnings("ignore:.*is out of bounds:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_dtype_is_drawn_or_refused_as_on_the_cpu(dtype: torch.dtype) -> None:
    for name, function in OPS.items():
        assert _outcome(function, "tpu", dtype) == _outcome(function, "cpu", dtype), name
    for name, calls in IN_PLACE.items():
        for numbers in calls:
            arguments = dtype, name, numbers
            assert _outcome(_in_place, "tpu", *arguments) == _outcome(_in_place, "cpu", *arguments), (name, numbers)
