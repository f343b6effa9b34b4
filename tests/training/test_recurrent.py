"""Recurrent modules against torch's CPU: outputs, last states and every gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn
from torch.utils import _pytree as pytree

import lazytpu


def whole(module: nn.Module, x: torch.Tensor) -> Any:
    return module(x)


def packed(module: nn.Module, x: torch.Tensor) -> Any:
    """Sequences of different lengths, not in order."""
    output, state = module(rnn.pack_padded_sequence(x, torch.tensor([2, 4]), enforce_sorted=False))
    return rnn.pad_packed_sequence(output, total_length=5)[0], state


def packed_with_states(module: nn.Module, x: torch.Tensor) -> Any:
    """Initial states that depend on x; directions that go backwards start with them at different steps."""
    first = x[:2, :, :1] + torch.arange(4, device=x.device)
    states = (first, -first) if isinstance(module, nn.LSTM) else first
    return module(rnn.pack_padded_sequence(x, torch.tensor([4, 2])), states)[0].data


def last_cell(module: nn.Module, x: torch.Tensor) -> Any:
    return module(x)[1][1]


Run = Callable[[nn.Module, torch.Tensor], Any]
CASES: dict[str, tuple[Callable[[], nn.Module], Run]] = {
    "lstm both ways": (lambda: nn.LSTM(3, 4, 2, bidirectional=True), whole),
    "lstm without biases": (lambda: nn.LSTM(3, 4, bias=False), whole),
    "lstm packed": (lambda: nn.LSTM(3, 4, bidirectional=True), packed_with_states),
    "lstm by its last cell": (lambda: nn.LSTM(3, 4), last_cell),
    "lstm projected": (lambda: nn.LSTM(3, 4, 2, proj_size=2, batch_first=True), whole),
    "lstm projected and packed": (lambda: nn.LSTM(3, 4, proj_size=2, bidirectional=True), packed),
    "lstm of one sequence": (lambda: nn.LSTM(3, 4), lambda m, x: m(x[0])),
    "gru both ways": (lambda: nn.GRU(3, 4, 2, bidirectional=True), whole),
    "gru without biases": (lambda: nn.GRU(3, 4, bias=False), whole),
    "gru packed": (lambda: nn.GRU(3, 4, bidirectional=True), packed_with_states),
    "rnn": (lambda: nn.RNN(3, 4, 2), packed),
    "rnn packed": (lambda: nn.RNN(3, 4, nonlinearity="relu", bidirectional=True), packed_with_states),
    "lstm of doubles": (lambda: nn.LSTM(3, 4).double(), whole),
    "lstm cell": (lambda: nn.LSTMCell(3, 4), lambda m, x: m(x[0])),
    "gru cell": (lambda: nn.GRUCell(3, 4), lambda m, x: m(x[0])),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch's CPU kernel warns that it is slow
@pytest.mark.parametrize("case", CASES)
def test_recurrent_modules_agree_with_the_cpu(case: str) -> None:
    torch.manual_seed(0)
    make, run = CASES[case]
    module = make()
    x = torch.randn(4, 2, 3, dtype=next(module.parameters()).dtype)
    by_device: list[list[torch.Tensor]] = []
    for device in ("cpu", "tpu"):
        device_module = copy.deepcopy(module).to(device)
        leaf = x.detach().to(device).requires_grad_()
        outputs = [t for t in pytree.tree_leaves(run(device_module, leaf)) if isinstance(t, torch.Tensor)]
        weights = [torch.linspace(0, 1, t.numel(), device=device, dtype=t.dtype).view(t.shape) for t in outputs]
        torch.autograd.backward(outputs, weights)
        gradients = [leaf.grad, *(p.grad for p in device_module.parameters())]
        by_device.append([t.detach().cpu() for t in [*outputs, *(g for g in gradients if g is not None)]])
    torch.testing.assert_close(by_device[1], by_device[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_program_serves_all_lengths(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer, x = nn.GRU(2, 3, 2, bidirectional=True, batch_first=True), torch.randn(3, 8, 2)

    def step(module: nn.Module, lengths: list[int]) -> list[torch.Tensor]:
        inputs = x.to(next(module.parameters()).device)
        sequences = rnn.pack_padded_sequence(inputs, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        with torch.autocast(inputs.device.type, dtype, enabled=dtype is torch.bfloat16 and inputs.device.type == "tpu"):
            output, final = module(sequences)
        padded, _ = rnn.pad_packed_sequence(output, batch_first=True, total_length=8)
        loss = padded.float().square().sum() + final.float().sum()
        gradients = torch.autograd.grad(loss, [*module.parameters()])
        return [t.detach().float().cpu() for t in (loss, padded, final, *gradients)]

    device_layer, compiled = copy.deepcopy(layer).to("tpu"), list[int]()
    for lengths in ([5, 8, 1], [7, 2, 7], [8, 8, 8], [6, 1, 1]):
        rounding = 1e-5 if dtype is torch.float32 else 5e-2
        torch.testing.assert_close(step(device_layer, lengths), step(layer, lengths), rtol=10 * rounding, atol=rounding)
        compiled.append(lazytpu.metrics()["misses"])
    assert compiled == [compiled[0]] * 4
