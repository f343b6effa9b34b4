"""Meta functions of unpooling, whose result has its input's memory format as on the CPU, and of the gradient of
fractional pooling, for which torch has one in two dimensions only."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.torch_private import suggest_memory_format

aten = torch.ops.aten


@override("aten.max_unpool2d.default")
def max_unpool2d(self: torch.Tensor, indices: torch.Tensor, output_size: list[int]) -> torch.Tensor:
    result = aten.max_unpool2d.default(self, indices, output_size)
    memory_format = suggest_memory_format(self) if self.dim() == 4 else torch.contiguous_format
    return torch.empty(result.shape, dtype=result.dtype, device="meta", memory_format=memory_format)


@override("aten.fractional_max_pool3d_backward.default")
def fractional_max_pool3d_backward(grad_output: torch.Tensor, self: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.empty(self.shape, dtype=self.dtype, device="meta")
