"""Whole training steps against torch's CPU: losses, parameters, compiles."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lazytpu


class Attention(nn.Module):
    """One pre-norm transformer block over token ids, with a tied head."""

    def __init__(self, vocabulary: int = 19, width: int = 16, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        b, t, w = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm(x)).split(w, dim=2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, w))
        return F.cross_entropy(self.head(self.last(x)).flatten(0, 1), ids.flatten())


class Perceptron(nn.Module):
    """Two linear layers and a mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


class Convolutions(nn.Module):
    """Convolution, BatchNorm and pooling with a cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, stride=2)
        )
        self.head = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.body(x).mean((2, 3)))
        return F.cross_entropy(y, torch.arange(len(x), device=x.device) % 5)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "attention": (Attention, lambda: torch.randint(0, 19, (2, 6))),
    "perceptron": (Perceptron, lambda: torch.randn(5, 8)),
    "convolutions": (Convolutions, lambda: torch.randn(6, 3, 8, 8)),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    # The gradient of a key's bias is zero but for rounding; a larger eps keeps Adam from blowing that up.
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-4),
    "adamw-single": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-4, foreach=False),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-4, fused=True),
}


def train(
    model: nn.Module, batch: torch.Tensor, make: Callable[[Any], torch.optim.Optimizer], steps: int
) -> tuple[list[float], list[int]]:
    """Losses, and compiles after each step."""
    optimizer = make(model.parameters())
    losses, compiled = [], []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / (1 + step)
        loss = model(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if batch.device.type == "tpu":
            lazytpu.mark_step()
            compiled.append(lazytpu.metrics()["compiles"])
        losses.append(loss.detach())
    return [float(loss) for loss in losses], compiled


def combinations() -> list[Any]:
    """The gate has every optimizer with the smallest model, and every model with one optimizer."""
    gate = {("attention", "adamw"), ("convolutions", "sgd"), *(("perceptron", optimizer) for optimizer in OPTIMIZERS)}
    every = itertools.product(MODELS, OPTIMIZERS)
    return [pytest.param(*pair, marks=() if pair in gate else pytest.mark.long) for pair in every]


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize(("name", "optimizer"), combinations())
def test_training_agrees_with_the_cpu_and_compiles_at_most_twice(name: str, optimizer: str) -> None:
    torch.manual_seed(0)
    make_model, make_batch = MODELS[name]
    model, batch = make_model(), make_batch()
    reference = copy.deepcopy(model)
    expected, _ = train(reference, batch, OPTIMIZERS[optimizer], steps=5)
    before = lazytpu.metrics()["compiles"]
    got, compiled = train(model.to("tpu"), batch.to("tpu"), OPTIMIZERS[optimizer], steps=5)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=2e-5, atol=1e-6)
    for (key, a), b in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=2e-3, atol=2e-5, msg=lambda m, k=key: f"{k}: {m}")
    assert compiled[1] == compiled[-1], f"compiles after each step: {compiled}"
    assert compiled[1] - before <= 2


def test_steady_step_donates_parameters_and_states() -> None:
    torch.manual_seed(0)
    model = nn.Linear(256, 256).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x = torch.randn(4, 256).to("tpu")
    for _ in range(4):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        lazytpu.mark_step()
    text = lazytpu.graphs()[-1].text()
    assert text.count("lazytpu.alias") == 3 * 2, "weight and bias, each with two moments"


def test_linear_layer_is_one_contraction_without_a_transpose() -> None:
    model = nn.Linear(5, 7).to("tpu")
    with torch.no_grad():
        y = model(torch.randn(3, 5).to("tpu"))
        lazytpu.mark_step()
    text = lazytpu.graphs()[-1].text()
    assert text.count("lazytpu.dot_general") == 1
    assert "lazytpu.transpose" not in text
    assert y.shape == (3, 7)


def test_gradients_alive_across_a_step_are_correct() -> None:
    torch.manual_seed(0)
    model = Perceptron()
    reference = copy.deepcopy(model)
    x = torch.randn(5, 8)
    model.to("tpu")
    for _ in range(3):
        model(x.to("tpu")).backward()
        reference(x).backward()
        lazytpu.mark_step()
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-6)
