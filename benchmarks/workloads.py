"""The training steps that several benchmarks measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


def mlp() -> tuple[nn.Module, Tensor]:
    """20 layers of width 32, and 8 rows: many small ops."""
    blocks = [module for _ in range(20) for module in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(*blocks), torch.randn(8, 32)


def transformer(layers: int = 12) -> tuple[nn.Module, Tensor]:
    """Layers of width 32, and 2 sequences of 8."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), torch.randn(2, 8, 32)


class Training:
    """A model with AdamW; calling it makes one step, without a mark_step()."""

    def __init__(self, make: Callable[[], tuple[nn.Module, Tensor]], device: str = "tpu"):
        torch.manual_seed(0)
        model, x = make()
        self.model, self.x = model.to(device), x.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def __call__(self) -> Tensor:
        loss = nn.functional.mse_loss(self.model(self.x), self.x)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def aten_ops(make: Callable[[], tuple[nn.Module, Tensor]]) -> int:
    """ATen ops of one step as stock PyTorch dispatches them on the CPU."""
    step = Training(make, "cpu")
    step()

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += 1
            return func(*args, **(kwargs or {}))

    with Counter() as counter:
        step()
    return counter.count
