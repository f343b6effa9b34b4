"""Dimensions marked as dynamic by `lazytpu.mark_dynamic` or torch's own `torch._dynamo.mark_dynamic`."""

from __future__ import annotations

from typing import Any

from lazytpu.frontend.torch_private import dynamic_dims
from lazytpu.ports import Ranges


def ranges_of(tensor: Any) -> Ranges:
    """Return the marked dimensions of a tensor, with the minimum and maximum size of each."""
    rank = tensor.dim()
    return {dim % rank: (low or 0, high) for dim, low, high in dynamic_dims(tensor) if -rank <= dim < rank}
