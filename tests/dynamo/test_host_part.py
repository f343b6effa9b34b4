"""The part of a compiled function that runs on the host: numbers that change are arguments of one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.dynamo.breaks import graph_breaks


def calls(function: Callable[..., Any], arguments: list[Any], warm: int = 2) -> None:
    """Compare a compiled function with eager for each argument. After `warm` calls it must compile nothing, and no
    graph may run op by op."""
    compiled, broken = torch.compile(function), len(graph_breaks())
    for number, argument in enumerate(arguments):
        x = torch.linspace(-1, 1, 6)
        on_device = x.to("tpu")
        before = lazytpu.metrics()["compiles"]
        got = compiled(on_device, argument).cpu()
        torch.testing.assert_close(got, function(x, argument), rtol=1e-5, atol=1e-6)
        if number >= warm:
            assert lazytpu.metrics()["compiles"] == before
    assert len(graph_breaks()) == broken


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "products": lambda x, a: x * a + a / 3 - (a * 2 + 1),
    "in place": lambda x, a: x.clone().mul_(a),
    "quotient": lambda x, a: a / (x + 3),
    "comparison": lambda x, a: x > a,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_python_floats_are_numbers_of_one_program(name: str) -> None:
    calls(FUNCTIONS[name], [0.1, 0.2, 0.35, -0.5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_tensors_of_the_host_without_dims_are_numbers(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return x * t + torch.where(x > 0, t, x) * (t + t)

    calls(function, [torch.tensor(v, dtype=dtype) for v in (1, 0, 3, 5)])


def test_larger_tensors_of_the_host_are_copied() -> None:
    def function(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return x * (t + 1).to(x.device) + x[t.abs().long()]

    calls(function, [torch.arange(6.0) % n for n in (2, 3, 4)])


def test_gradients_follow_numbers() -> None:
    model = nn.Linear(4, 4).to("tpu")
    compiled = torch.compile(lambda x, scale: (model(x) * scale).square().sum() * scale)
    for scale in (0.5, 0.25, 2.0):
        x = torch.linspace(-1, 1, 8, device="tpu").reshape(2, 4)
        ((model(x) * scale).square().sum() * scale).backward()
        expected = [p.grad.cpu() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        compiled(x, scale).backward()
        for p, gradient in zip(model.parameters(), expected, strict=True):
            assert p.grad is not None
            torch.testing.assert_close(p.grad.cpu(), gradient, rtol=1e-4, atol=1e-5)
        model.zero_grad()


def test_a_host_value_is_read_before_it_is_written() -> None:
    """A counter on the CPU: the record takes its value at the point where the function reads it."""

    def function(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        y = x * count
        count += 1
        return y + count

    eager, count = torch.zeros(()), torch.zeros(())
    compiled = torch.compile(function)
    for _ in range(3):
        x = torch.ones(2)
        expected, got = function(x, eager), compiled(x.to("tpu"), count)
        torch.testing.assert_close(got.cpu(), expected)
        torch.testing.assert_close(count, eager)


def test_a_value_of_the_device_on_the_host_is_named() -> None:
    def function(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        t += x.sum().cpu()
        return x * t

    t = torch.ones(())
    assert torch.compile(function)(torch.ones(2, device="tpu"), t).tolist() == [3, 3]
    assert t.item() == 3
    assert "op by op" in str(graph_breaks()[-1])


def test_other_devices_stay_refused() -> None:
    with pytest.raises(Exception, match="device"):
        torch.compile(lambda x, t: x + t)(torch.ones(3, device="tpu"), torch.ones(3))
    assert torch.compile(lambda x: x + 1)(torch.ones(1, device="tpu")).item() == 2


def test_constants_of_the_host_may_be_returned() -> None:
    broken = len(graph_breaks())
    y, count = torch.compile(lambda x: (x + 1, torch.tensor(3.0)))(torch.ones(2, device="tpu"))
    assert (y.tolist(), count.device.type, count.item()) == ([2, 2], "cpu", 3)
    assert len(graph_breaks()) == broken
