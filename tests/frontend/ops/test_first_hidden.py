"""A recurrent layer runs the same program without a state and with the last state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lazytpu
from lazytpu.frontend.ops import first_hidden


def train(kind: Callable[..., nn.Module], device: str, carry: bool, steps: int = 4) -> list[Tensor]:
    """Return the weights after a few steps, each continuing with the previous state if they `carry` it."""
    torch.manual_seed(3)
    layer = kind(3, 5, 2).to(device)
    optimizer, state = torch.optim.SGD(layer.parameters(), 0.1), None
    for _ in range(steps):
        x = torch.rand(4, 2, 3).to(device)
        output, last = layer(x, state)
        if carry:
            state = tuple(tensor.detach() for tensor in last) if isinstance(last, tuple) else last.detach()
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
        output.detach().sum().item()
    return [p.detach().cpu() for p in layer.parameters()]


def compiled(run: Callable[[], Any]) -> tuple[Any, int]:
    lazytpu.sync()
    before = lazytpu.metrics()["compiles"]
    return run(), lazytpu.metrics()["compiles"] - before


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_loop_that_carries_its_state_compiles_one_program(kind: Callable[..., nn.Module]) -> None:
    got, once = compiled(lambda: train(kind, "tpu", carry=True, steps=1))
    five_steps, then = compiled(lambda: train(kind, "tpu", carry=True))
    assert (once > 0, then) == (True, 0)
    assert all(map(torch.isfinite, [weight.sum() for weight in got]))
    torch.testing.assert_close(five_steps, train(kind, "cpu", carry=True))
    fresh_states, none = compiled(lambda: train(kind, "tpu", carry=False))
    assert none == 0
    torch.testing.assert_close(fresh_states, train(kind, "cpu", carry=False))


def test_equal_layers_have_states_of_their_own() -> None:
    def run(device: str) -> Tensor:
        torch.manual_seed(0)
        first, second = nn.LSTM(3, 3).to(device), nn.LSTM(3, 3).to(device)
        x, states = torch.rand(2, 1, 3).to(device), (None, None)
        for _ in range(3):
            x, a = first(x, states[0])
            x, b = second(x, states[1])
            states = a, b
            lazytpu.mark_step()
        return x.detach().cpu()

    torch.testing.assert_close(run("tpu"), run("cpu"))


def test_zeros_of_the_script_are_not_shared() -> None:
    def run(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        layer = nn.GRU(3, 3).to(device)
        x, h = torch.rand(2, 1, 3).to(device), torch.zeros(1, 1, 3, device=device)
        first = layer(x, h)[0]
        h += 1
        second = layer(x, h)[0]
        wanted = torch.zeros(1, 1, 3, device=device, requires_grad=True)
        layer(x, wanted)[0].sum().backward()
        turned = layer(x[:, :, [0, 1, 2]], torch.zeros(3, 1, 1, device=device).transpose(0, 2))[0]
        assert wanted.grad is not None
        return [value.detach().cpu() for value in (first, second, layer(x)[0], h, wanted.grad, turned)]

    for got, expected in zip(run("tpu"), run("cpu"), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_trace_of_many_calls_caches_few_zeros() -> None:
    layer, x = nn.GRU(3, 7).to("tpu"), torch.rand(2, 1, 3).to("tpu")
    with lazytpu.mode("lazy"), torch.no_grad():
        outputs = [layer(x)[0] for _ in range(first_hidden.MOST + 3)]
        lazytpu.mark_step()
    (kept,) = [zeros for layouts in first_hidden._kept.values() for key, zeros in layouts.items() if (1, 1, 7) in key]
    assert len(kept) == first_hidden.MOST
    torch.testing.assert_close(outputs[0].cpu(), outputs[-1].cpu())
