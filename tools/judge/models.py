"""The models whose steps are judged: realistic widths, few layers and small vocabularies, so that a step compiles in
minutes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 4096  # tokens: large enough for the head to be a tenth of a step


class GptBlock(nn.Module):
    """Attention and MLP as in GPT-2."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] to the same."""
        batch, tokens, width = x.shape
        qkv = self.qkv(self.before(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.after(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2 with tied embeddings."""

    def __init__(self, layers: int, width: int = 768, heads: int = 12, tokens: int = 512):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[batch, tokens] ids to [batch, tokens, vocabulary] logits."""
        places = torch.arange(ids.shape[1], device=ids.device)
        return F.linear(self.norm(self.blocks(self.embed(ids) + self.position(places))), self.embed.weight)


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary embedding, and SwiGLU, as in Llama."""

    def __init__(self, width: int, heads: int, shared: int):
        super().__init__()
        self.head, self.heads, self.shared = width // heads, heads, shared
        self.before, self.after = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, shared * self.head, bias=False) for _ in range(2))
        hidden = width * 8 // 3 // 128 * 128
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width] to the same; `cos` and `sin` are [tokens or more, head]."""
        batch, tokens, width = x.shape
        y = self.before(x)
        q, k, v = (linear(y).view(batch, tokens, -1, self.head).transpose(1, 2) for linear in (self.q, self.k, self.v))
        q, k = (rotated(rows, cos[:tokens], sin[:tokens]) for rows in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y = self.after(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The rotary embedding, https://arxiv.org/abs/2104.09864, with halves as Llama has them."""
    first_half, two = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-two, first_half), dim=-1) * sin


class Llama(nn.Module):
    """Llama's blocks between an embedding and a head."""

    def __init__(self, layers: int, width: int = 768, heads: int = 12, shared: int = 4, tokens: int = 512):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY, bias=False)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, shared) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        size = width // heads
        angles = torch.outer(torch.arange(tokens), 10_000.0 ** -(torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[batch, tokens] ids to [batch, tokens, vocabulary] logits."""
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class Residual(nn.Module):
    """A layer of twice the width, GELU, a layer back, and a way around them."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x), approximate="tanh"))


class ResnetBlock(nn.Module):
    """Two convolutions with batch normalization and a way around them, and a classifier."""

    def __init__(self, channels: int = 64, classes: int = 100):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, channels, height, width] images to [batch, classes] logits."""
        y = F.relu(self.norms[0](self.first(x)))
        y = F.relu(x + self.norms[1](self.second(y)))
        return self.head(y.mean((2, 3)))
