"""Layers of whose operands only some need a gradient, such as the first one of a model, or one with frozen weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import lazytpu

IMAGES = torch.arange(2 * 4 * 3 * 3.0).reshape(2, 4, 3, 3) / 10
ROWS = torch.arange(2 * 4 * 6.0).reshape(2, 4, 6) / 10
FOUR, SIX = torch.arange(1.0, 5), torch.arange(1.0, 7)


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros(4, device=x.device), torch.ones(4, device=x.device)


LAYERS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    "batch norm": (lambda x, w, b: F.batch_norm(x, *statistics(x), w, b, training=True), (IMAGES, FOUR, FOUR)),
    "batch norm in eval": (lambda x, w, b: F.batch_norm(x, *statistics(x), w, b), (IMAGES, FOUR, FOUR)),
    "instance norm": (lambda x, w, b: F.instance_norm(x, None, None, w, b), (IMAGES, FOUR, FOUR)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), (ROWS, SIX, SIX)),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (IMAGES, FOUR, FOUR)),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (IMAGES, IMAGES[:1].repeat(4, 1, 1, 1), FOUR)),
    "linear": (lambda x, w, b: F.linear(x, w, b), (ROWS, ROWS[0], FOUR)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_only_some_operands_need_gradients(name: str) -> None:
    layer, operands = LAYERS[name]
    results: dict[str, list[Tensor]] = {}
    for device in ("cpu", "tpu"):
        results[device] = []
        for needed in list(product((False, True), repeat=3))[1:]:
            leaves = [t.to(device).requires_grad_(n) for t, n in zip(map(torch.clone, operands), needed, strict=True)]
            y = layer(*leaves)
            weights = torch.arange(y.numel(), device=device).reshape(y.shape) / y.numel()
            results[device] += torch.autograd.grad((y * weights).sum(), [t for t in leaves if t.requires_grad])
    lazytpu.mark_step()
    for actual, expected in zip(results["tpu"], results["cpu"], strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-3, atol=1e-3)
