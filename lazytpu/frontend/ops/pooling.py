"""max_pool1d of integers: the CPU has a kernel of its own, which takes no integers, though max_pool2d takes them."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.torch_private import composite

_torch_max_pool1d = composite(torch.ops.aten.max_pool1d.default)


def max_pool1d(self: torch.Tensor, *window: Any, **options: Any) -> torch.Tensor:
    """The kernel of aten::max_pool1d: torch's own checks come first."""
    pooled = _torch_max_pool1d(self, *window, **options)
    if not self.is_floating_point():
        raise NotImplementedError(f"\"max_pool1d_impl\" not implemented for '{scalar_type(self.dtype)}'")
    return pooled


COMPOSITES: dict[str, Any] = {"max_pool1d": max_pool1d}
