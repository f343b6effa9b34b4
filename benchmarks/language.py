"""Language models as scripts write them: a GPT and a Llama to train, and a Llama that decodes token by token."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import lazytpu

VOCABULARY, WIDTH, HEADS, SHARED, LENGTH = 256, 64, 4, 2, 64
SIZE = WIDTH // HEADS


class Norm(nn.Module):
    """RMSNorm, op by op."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions."""
    left, right = x[..., : SIZE // 2], x[..., SIZE // 2 :]
    return x * cosine + torch.cat((-right, left), dim=-1) * sine


class LlamaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = Norm(), Norm()
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, SHARED * SIZE, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, cache: Cache | None) -> Tensor:
        normed = self.before(x)
        shape = (*x.shape[:2], -1, SIZE)
        q, k, v = (layer(normed).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = rotated(q, cosine, sine), rotated(k, cosine, sine)
        mask = None
        if cache is not None:
            k, v, mask = cache.extended(k, v)
        a = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=cache is None, enable_gqa=True)
        x = x + self.out(a.transpose(1, 2).reshape(x.shape))
        normed = self.between(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Cache:
    """The keys and values of a layer: of all positions and written in place, or growing (`static` is None)."""

    def __init__(self, static: tuple[Tensor, Tensor] | None = None) -> None:
        self.static, self.past, self.position = static, None, torch.zeros(1, dtype=torch.int64)

    def extended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add a token; return all keys and values, and a mask of those there are."""
        if self.static is not None:
            keys, values = self.static
            keys.index_copy_(2, self.position, k)
            values.index_copy_(2, self.position, v)
            return keys, values, torch.arange(keys.shape[2], device=k.device)[None, :] <= self.position[:, None]
        if self.past is not None:
            k, v = torch.cat((self.past[0], k), dim=2), torch.cat((self.past[1], v), dim=2)
        self.past = k, v
        return k, v, None


class Llama(nn.Module):
    frequencies: Tensor

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(VOCABULARY, WIDTH), Norm()
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("frequencies", 10000 ** (-torch.arange(0, SIZE, 2) / SIZE))

    def forward(self, tokens: Tensor, positions: Tensor, caches: list[Cache] | None = None) -> Tensor:
        angles = torch.cat([positions[:, None] * self.frequencies] * 2, dim=-1)
        cosine, sine = angles.cos(), angles.sin()
        x = self.embedding(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, cosine, sine, None if caches is None else caches[i])
        return self.head(self.norm(x))


class GPT(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        settings = {"activation": "gelu", "batch_first": True, "norm_first": True, "dropout": 0.0}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, **settings) for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(positions)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=x.device)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def training(model: nn.Module, device: str = "tpu") -> Callable[[], None]:
    """A training step with AdamW."""
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH + 1)).to(device)
    positions = torch.arange(LENGTH).to(device)

    def step() -> None:
        logits = model(tokens[:, :-1], positions)
        functional.cross_entropy(logits.view(-1, VOCABULARY), tokens[:, 1:].reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        lazytpu.mark_step()

    return step


def decoding(layers: int, *, static: bool, device: str = "tpu") -> Callable[[], None]:
    """A token of greedy decoding. Its cache begins again after LENGTH tokens."""
    model = Llama(layers).to(device).eval()
    token, count, caches = torch.zeros(1, 1, dtype=torch.int64).to(device), 0, list[Cache]()

    def step() -> None:
        nonlocal token, count, caches
        with torch.no_grad():
            if count % LENGTH == 0:
                shape = 1, SHARED, LENGTH, SIZE
                empty = [tuple(torch.zeros(shape).to(device) for _ in "kv") if static else None for _ in range(layers)]
                caches, count = [Cache(memory) for memory in empty], 0  # pyright: ignore[reportArgumentType]
            position = torch.tensor([count]).to(device)
            for cache in caches:
                cache.position = position
            token = model(token, position, caches)[:, -1].argmax(-1, keepdim=True)
            count += 1
            lazytpu.mark_step()

    return step
