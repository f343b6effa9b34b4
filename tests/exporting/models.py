"""Models to export, each with example arguments, including models that run in plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import scan


@dataclass(frozen=True)
class Case:
    """`make()` returns a module, positional and keyword arguments, the same at each call. `tolerance` is for JAX, whose
    fusions differ."""

    make: Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]
    tolerance: float = 1e-5
    options: dict[str, Any] = field(default_factory=dict)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 16, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.norm(self.conv(images)).relu(), 2)
        return self.head(x.flatten(1)).log_softmax(-1)


class Transformer(nn.Module):
    """Token ids to logits; input and output embeddings are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.position = nn.Parameter(torch.randn(6, 16) * 0.1)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.block(self.embed(tokens) + self.position, src_mask=mask, is_causal=True))


class Cache(nn.Module):
    """Appends to a buffer that persists between calls, and overwrites an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 3))
        self.register_buffer("length", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, key: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        self.keys.index_copy_(0, self.length, key[None])
        self.length.add_(1)
        total += key
        return self.keys.sum(0)


class Mixed(nn.Module):
    """bfloat16 under autocast, and a part without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            y = self.inner(x)
        with torch.no_grad():
            return y.float() + 1


def nested(d: dict[str, Any], pair: tuple[Any, Any], *, scale: torch.Tensor, flag: bool = True) -> Any:
    x, y = d["y"][0], d["x"]
    return {"sum": x + y * scale, "again": [pair[0], pair[0]], "none": None, "three": 3, "pair": (x.mean(), pair[1])}


def nested_arguments() -> tuple[tuple[Any, ...], dict[str, Any]]:
    d = {"y": [torch.arange(3.0)], "x": torch.ones(3)}
    return (d, (torch.tensor([True, False]), None)), {"scale": torch.tensor(2.0), "flag": True}


def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results that are arguments, views, and each other; constants; sizes of 0."""
    y = x.T
    return x, y, y, x[:0], torch.arange(3), torch.zeros(2, dtype=torch.bool), y[1:, ::2], x.argmax(1)


def branching(x: torch.Tensor) -> torch.Tensor:
    """A branch and a loop."""
    y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
    return scan(lambda total, row: (total + row, total * row), torch.zeros(4), y, dim=0)[1]


def seeded(make: Callable[[], Any]) -> Callable[[], Any]:
    def made() -> Any:
        torch.manual_seed(1)
        return make()

    return made


def of(make: Callable[[], tuple[nn.Module, tuple[Any, ...]]], tolerance: float = 1e-5, **options: Any) -> Case:
    return Case(seeded(lambda: (*make(), {})), tolerance, options)


CASES: dict[str, Case] = {
    "mlp": of(lambda: (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)).eval(), (torch.randn(2, 4),))),
    "convolution": of(lambda: (ConvNet().eval(), (torch.randn(2, 3, 8, 8),))),
    "training": of(lambda: (ConvNet(), (torch.randn(2, 3, 8, 8),))),
    "channels_last": of(lambda: (ConvNet().eval(), (torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),))),
    "transformer": of(lambda: (Transformer().eval(), (torch.randint(11, (2, 6)),))),
    "embedding": of(lambda: (nn.EmbeddingBag(7, 3, mode="sum"), (torch.tensor([[1, 2], [6, 0]], dtype=torch.int32),))),
    "dropout": of(lambda: (nn.Dropout(0.5).eval(), (torch.randn(3),))),
    "cache": of(lambda: (Cache(), (torch.randn(3), torch.ones(3)))),
    "nested": Case(lambda: (Function(nested), *nested_arguments())),
    "several": of(lambda: (Function(several), (torch.randn(3, 4),))),
    "double": of(lambda: (nn.Linear(3, 2).double(), (torch.randn(2, 3, dtype=torch.float64),)), 1e-12),
    "bfloat16": of(lambda: (nn.Linear(8, 4).bfloat16(), (torch.randn(2, 8, dtype=torch.bfloat16),)), 1e-2),
    "autocast": of(lambda: (Mixed(), (torch.randn(2, 4),)), 1e-2),
    "empty": of(lambda: (nn.Linear(3, 2), (torch.randn(0, 3),))),
    "linalg": of(lambda: (Function(torch.linalg.eigvalsh), (torch.eye(3) + torch.ones(3, 3),))),
    "nothing": of(lambda: (Function(lambda: torch.arange(3)), ())),
    "branching": of(lambda: (Function(branching), (torch.randn(3, 4),))),
    "complex": of(lambda: (Function(lambda x: torch.fft.fft(x) * (1 + 2j)), (torch.randn(4),))),
}
