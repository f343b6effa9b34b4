"""Five small training steps in mixed precision, by which the model of a chip is calibrated (`calibration.py`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Attention with heads of 64, where groups of `grouped` heads share a key."""

    def __init__(self, width: int, grouped: int = 1, causal: bool = False):
        super().__init__()
        self.keys, self.causal, self.grouped = width // grouped, causal, grouped > 1
        self.qkv = nn.Linear(width, width + 2 * self.keys)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split([x.shape[-1], self.keys, self.keys], -1)
        q, k, v = (part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=self.grouped)
        return self.out(seen.transpose(1, 2).flatten(2))


class GptBlock(nn.Module):
    """A pre-norm block, with a GELU layer of four times the width."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, causal=True)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class BertLayer(nn.Module):
    """A post-norm layer."""

    def __init__(self, width: int):
        super().__init__()
        self.attention = Attention(width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.narrow(F.gelu(self.wide(x))))


class LlamaBlock(nn.Module):
    """Two heads per key, and a gate."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, grouped=2, causal=True)
        self.gate, self.up, self.down = nn.Linear(width, 688), nn.Linear(width, 688), nn.Linear(688, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((512, 1024), (1024, 1024), (1024, 512)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.layers[0](x))
        x = F.relu(self.layers[1](x))
        return self.layers[2](x)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return F.relu(self.second(x))


STEPS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "GPT-2 block of width 256, 2 x 1,024 tokens": lambda: (GptBlock(256), torch.randn(2, 1024, 256)),
    "Llama block of width 256, 512 tokens": lambda: (LlamaBlock(256), torch.randn(1, 512, 256)),
    "BERT layer of width 256, 8 x 128 tokens": lambda: (BertLayer(256), torch.randn(8, 128, 256)),
    "MLP of 512, 1,024, 1,024 and 512, 1,024 rows": lambda: (Mlp(), torch.randn(1024, 512)),
    "two convolutions to 32 and 64 channels, 32 images of 32 x 32": lambda: (
        Convolutions(),
        torch.randn(32, 3, 32, 32),
    ),
}


def training(name: str) -> Callable[[], Tensor]:
    """A training step with AdamW, on "tpu"."""
    model, x = STEPS[name]()
    model, x = model.to("tpu"), x.to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("tpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step
