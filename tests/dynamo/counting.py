"""Arguments of graphs with data-dependent sizes."""

from __future__ import annotations

import torch


def mask(count: int) -> torch.Tensor:
    """Return a mask of 16 elements, of which `count` are true, at random places."""
    selected = torch.zeros(16, dtype=torch.bool)
    selected[torch.randperm(16)[:count]] = True
    return selected
