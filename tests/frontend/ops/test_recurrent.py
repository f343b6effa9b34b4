"""Recurrent layers are one record in each direction; unsupported calls are unrolled, as by torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import lazytpu
from tests.frontend.alike import attempt, records


def on_both(module: nn.Module, run: Callable[[nn.Module, str], Any]) -> list[Any]:
    return [run(copy.deepcopy(module).to(device), device) for device in ("cpu", "tpu")]


def test_a_layer_is_one_record_each_way_and_its_program_does_not_grow_with_time() -> None:
    layer = nn.LSTM(2, 3).to("tpu")
    states = [torch.zeros(1, 1, 3, device="tpu") for _ in range(2)]
    texts = []
    for steps in (3, 40):
        x = torch.ones(steps, 1, 2, device="tpu")
        before = records()
        with lazytpu.options(buckets="off"):  # both texts belong to exact programs
            output, _ = layer(x, states)
            gradients = torch.autograd.grad(output, [*layer.parameters()], torch.ones_like(output))
            assert records() - before == 3, "ones"
            assert gradients[0].shape == (12, 2)
        texts.append(lazytpu.graphs()[-1].text())
    assert len(texts[0].splitlines()) == len(texts[1].splitlines())
    assert texts[1].count("lazytpu.while") == 2


def test_dropout_between_layers_follows_the_devices_generator() -> None:
    torch.manual_seed(0)
    layer, x = nn.GRU(3, 4, 2, dropout=0.5).double().to("tpu"), torch.randn(2, 2, 3).double().to("tpu").requires_grad_()

    def gradient(seed: int, again: bool) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=again)[0].cpu()

    first = gradient(1, False)
    assert torch.equal(gradient(1, False), first)
    assert not torch.equal(gradient(2, False), first)
    torch.testing.assert_close(gradient(1, True).detach(), first)  # unrolled, with the same masks
    layer.dropout = 1.0
    without = layer(x)[0]
    torch.testing.assert_close(without, layer(torch.zeros_like(x))[0])
    layer.eval()
    assert not torch.allclose(layer(x)[0], without)


def test_second_gradients() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 2, 3)

    def run(module: nn.Module, device: str) -> list[torch.Tensor]:
        weights = [*module.parameters()]
        gradients = torch.autograd.grad(module(x.to(device))[0].square().sum(), weights, create_graph=True)
        return [
            g.cpu() for g in torch.autograd.grad(torch.cat([g.flatten() for g in gradients]).square().sum(), weights)
        ]

    torch.testing.assert_close(*reversed(on_both(nn.GRU(3, 2), run)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, x = nn.LSTM(4, 3, batch_first=True), torch.randn(2, 3, 4)
    expected = layer(x)[0]
    expected.sum().backward()
    on_device, half = copy.deepcopy(layer).to("tpu"), copy.deepcopy(layer).to("tpu", dtype)
    on_device.zero_grad()
    with torch.autocast("tpu", dtype):
        cast = on_device(x.to("tpu"))[0]
    plain = half(x.to("tpu", dtype))[0]
    cast.float().sum().backward()
    assert cast.dtype == plain.dtype == dtype
    assert cast.stride() == expected.stride()
    assert torch.equal(cast, plain)
    torch.testing.assert_close(cast.float().cpu(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(
        on_device.weight_hh_l0.grad, layer.weight_hh_l0.grad, rtol=2e-2, atol=2e-2, check_device=False
    )


def test_transforms_of_functions() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 2, 3)

    def run(module: nn.Module, device: str) -> torch.Tensor:
        return torch.func.grad(lambda x: module(x)[0].square().sum())(x.to(device)).cpu()

    torch.testing.assert_close(*reversed(on_both(nn.GRU(3, 2), run)))


def test_rejected_and_empty_arguments() -> None:
    def calls(layer: Any, device: str) -> list[Any]:
        weights, x = layer._flat_weights, torch.ones(3, 2, 4, device=device)
        state = torch.ones(1, 2, 5, device=device)
        settings = (True, 1, 0.0, False, False, False)
        return [
            attempt(lambda: torch._VF.gru(x[:0], state, weights, *settings)),
            attempt(lambda: torch._VF.gru(x, state.double(), weights, *settings)),
            attempt(lambda: torch._VF.gru(x, state, weights[:3], *settings)),
            attempt(lambda: torch._VF.gru(x[:, :0], state[:, :0], weights, *settings)[0].shape),
        ]

    expected, got = on_both(nn.GRU(4, 5), calls)
    assert got == expected


def test_work_is_counted() -> None:
    def count(layer: nn.Module, device: str) -> int:
        with FlopCounterMode(display=False) as counter:
            layer(torch.ones(3, 2, 4, device=device))
        return counter.get_total_flops()

    expected, got = on_both(nn.GRU(4, 5, 2, bidirectional=True), count)
    assert got == expected


@pytest.mark.parametrize("transform", ["autograd", "func"])
def test_gradients_of_many_at_once(transform: str) -> None:
    """torch has no batching rule for the gradient of its op."""
    x, many = torch.randn(2, 1, 2), torch.eye(4).view(4, 2, 1, 2)

    def jacobians(layer: nn.Module, device: str) -> list[torch.Tensor]:
        leaf, vectors = x.to(device).requires_grad_(), many.to(device)
        inputs, output = [leaf, layer.weight_hh_l0], layer(leaf)[0]
        if transform == "autograd":
            gradients = torch.autograd.grad(output, inputs, vectors, is_grads_batched=True)
        else:
            gradients = torch.func.vmap(lambda v: torch.autograd.grad(output, inputs, v))(vectors)
        return [t.cpu() for t in gradients]

    expected, actual = on_both(nn.GRU(2, 2), jacobians)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_cells_refuse_sizes_and_dtypes_at_their_call() -> None:
    x, h, w = (torch.ones(size, device="tpu") for size in [(3, 5), (3, 4), (12, 5)])
    hidden, bias = torch.ones(12, 4, device="tpu"), torch.ones(12, device="tpu")
    with pytest.raises(RuntimeError, match=r"input_bias has the sizes \[11\], but they have to be \[12\]"):
        torch.gru_cell(x, h, w, hidden, bias[:11], bias)
    with pytest.raises(RuntimeError, match=r"hidden_bias is torch.float64, but the gates .* torch.float32"):
        torch.gru_cell(x, h, w, hidden, bias, bias.double())
    growing = nn.utils.rnn.PackedSequence(torch.ones(5, 5, device="tpu"), torch.tensor([2, 3]))
    with pytest.raises(RuntimeError, match=r"hidden_gates has the sizes \[2, 12\]"):
        nn.GRU(5, 4).to("tpu")(growing)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_state_of_an_lstm_cell_may_have_another_dtype(dtype: torch.dtype) -> None:
    def step(cell: nn.Module, device: str) -> list[torch.Tensor]:
        state = torch.full((3, 4), 0.5, dtype=dtype).to(device).requires_grad_()
        h, c = cell(torch.ones(3, 5).to(device), (torch.ones(3, 4).to(device), state))
        (h.sum() + c.square().sum()).backward()
        return [t.detach().cpu() for t in (h, c, state.grad, *(p.grad for p in cell.parameters())) if t is not None]

    expected, actual = on_both(nn.LSTMCell(5, 4), step)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
