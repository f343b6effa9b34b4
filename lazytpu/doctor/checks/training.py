"""A few training steps in each mode, compared with the same steps on the CPU."""

from __future__ import annotations

import torch
from torch import nn

import lazytpu
from lazytpu.doctor.check import check

STEPS = 4  # the first makes the optimizer's state, the second compiles with it, two repeat
WORDS, WIDTH = 32, 16


class SmallModel(nn.Module):
    """An embedding, a residual layer, normalization and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        return self.head(self.norm(x + nn.functional.gelu(self.layer(x))))


def _train(device: str, bfloat16: bool = False) -> list[float]:
    """The losses of a few steps with AdamW."""
    torch.manual_seed(0)
    model = SmallModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.arange(48).reshape(4, 12).remainder(WORDS).to(device)
    losses: list[torch.Tensor] = []
    for _ in range(STEPS):
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16):
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        lazytpu.mark_step()
    return [loss.item() for loss in losses]


@check(of=("fused", "lazy", "strict", "debug"), limit=120)
def mode(name: str) -> str:
    """A small model trained with AdamW in this mode has the CPU's losses."""
    before = lazytpu.metrics()
    with lazytpu.options(mode=name):
        losses = _train("tpu")
    after = lazytpu.metrics()
    _same(losses, _train("cpu"), 1e-3)
    steps, compiles = (after[key] - before[key] for key in ("steps", "compiles"))
    return f"loss {losses[0]:.4f} to {losses[-1]:.4f}; {steps} programs ran, {compiles} were compiled"


@check(limit=120)
def bfloat16() -> str:
    """So does the model under autocast to bfloat16."""
    losses = _train("tpu", bfloat16=True)
    _same(losses, _train("cpu", bfloat16=True), 3e-2)
    return f"loss {losses[0]:.4f} to {losses[-1]:.4f}"


def _same(losses: list[float], expected: list[float], tolerance: float) -> None:
    worst = max(abs(loss - expected_loss) for loss, expected_loss in zip(losses, expected, strict=True))
    if not worst <= tolerance:  # true for NaN
        raise ValueError(f"losses are {losses}, but {expected} on the CPU: {worst:.2g} apart")
