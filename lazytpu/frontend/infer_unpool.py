"""Meta function of unpooling: the result has the memory format of its input, as the CPU's kernel gives it."""

from __future__ import annotations

import torch
from torch._prims_common import suggest_memory_format

from lazytpu.frontend.infer import override

aten = torch.ops.aten


@override("aten.max_unpool2d.default")
def max_unpool2d(self: torch.Tensor, indices: torch.Tensor, output_size: list[int]) -> torch.Tensor:
    made = aten.max_unpool2d.default(self, indices, output_size)
    wanted = suggest_memory_format(self) if self.dim() == 4 else torch.contiguous_format
    return torch.empty(made.shape, dtype=made.dtype, device="meta", memory_format=wanted)
