"""Results of float64 ops with a mantissa of 64 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tools.conformance.trial import Trial


def references(trial: Trial, grad: bool) -> list[tuple[torch.Tensor, torch.Tensor] | None] | None:
    return None
