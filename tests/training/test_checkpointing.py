"""Activation checkpointing: gradients as without it, in less memory by XLA's own count."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import lazytpu

NARROW, WIDE, BATCH, LAYERS = 16, 256, 64, 6


class Block(nn.Module):
    """Needs 4·BATCH·WIDE bytes several times over for its gradient, and BATCH·NARROW to be computed anew."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(NARROW, WIDE), nn.Linear(WIDE, NARROW)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.dropout(torch.sin(torch.tanh(self.up(x)))))


class Stack(nn.Module):
    """Blocks, each called as `mode` says."""

    def __init__(self, mode: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.mode = mode
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.mode == "kept":
                x = block(x)
            elif self.mode == "closure":
                x = checkpoint(lambda block=block, x=x: block(x), use_reentrant=False)
            else:
                x = checkpoint(block, x, use_reentrant=self.mode == "reentrant")
        return x.square().mean()


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(x).backward()
    if x.device.type == "tpu":
        lazytpu.mark_step()
    return [p.grad for p in model.parameters() if p.grad is not None]


def stack(mode: str, dropout: float = 0.0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Stack(mode, dropout), torch.randn(BATCH, NARROW, requires_grad=True)


def on_device(model: nn.Module, x: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
    return copy.deepcopy(model).to("tpu"), x.detach().to("tpu").requires_grad_()


def temporaries(mode: str) -> int:
    """Return the bytes that a step of the stack needs in addition to the live values, by XLA's analysis."""
    model, x = on_device(*stack(mode))
    step(model, x)
    lazytpu.sync()
    model.zero_grad()
    x.grad = None
    lazytpu.reset_metrics()
    before = lazytpu.metrics()["live_bytes"]
    step(model, x)
    return lazytpu.metrics()["peak_bytes"] - before


MODES = ["reentrant", "not reentrant", "closure"]


@pytest.mark.parametrize("mode", MODES)
def test_gradients_agree_with_the_cpu(mode: str) -> None:
    model, x = stack(mode)
    expected = step(model, x)
    for _ in range(2):
        got = step(*on_device(model, x))
        torch.testing.assert_close([g.cpu() for g in got], expected, rtol=1e-4, atol=1e-6)


def test_recomputation_saves_memory() -> None:
    kept = temporaries("kept")
    needed = {mode: temporaries(mode) for mode in MODES}
    activation = 4 * BATCH * WIDE
    assert kept > 2 * LAYERS * activation
    for mode, bytes_needed in needed.items():
        assert bytes_needed < kept - LAYERS * activation, f"{mode}: {bytes_needed}, kept: {kept}"


@pytest.mark.parametrize("mode", MODES[:2])
def test_dropout_is_recomputed_with_the_same_numbers(mode: str) -> None:
    gradients = []
    for variant in ("kept", mode):
        model, x = on_device(*stack(variant, dropout=0.5))
        torch.manual_seed(3)
        gradients.append([g.cpu() for g in step(model, x)])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_read_inside_a_checkpoint() -> None:
    """A read cuts the trace inside the recomputation, and the gradients are unchanged."""

    def read(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = block(x)
        return y * 0.5 if y.sum().item() > 0 else y * 0.25

    model, x = stack("kept")
    gradients: list[Any] = []
    for module, leaf in ((model, x), on_device(model, x)):
        y = leaf * 1
        for block in module.blocks:
            y = checkpoint(read, block, y, use_reentrant=False)
        (grad,) = torch.autograd.grad(y.square().mean(), leaf)
        gradients.append(grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


def test_segments_of_a_sequence_and_nested_checkpoints() -> None:
    torch.manual_seed(0)
    blocks, x = nn.Sequential(*(Block() for _ in range(4))), torch.randn(BATCH, NARROW, requires_grad=True)

    def nested(blocks: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
        inner = checkpoint(blocks[0], x, use_reentrant=False)
        return checkpoint(blocks[1], inner, use_reentrant=False)

    gradients = []
    for module, leaf in ((blocks, x), on_device(blocks, x)):
        y = checkpoint_sequential(module, 2, leaf, use_reentrant=False)
        y = checkpoint(nested, module, y, use_reentrant=False)
        gradients.append([g.cpu() for g in torch.autograd.grad(y.square().mean(), [leaf, *module.parameters()])])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
