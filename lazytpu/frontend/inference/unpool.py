"""Meta functions of pooling and unpooling in a memory format, as on the CPU, and of the gradient of fractional pooling,
for which torch has one in two dimensions only."""

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


@override("aten.max_pool3d_with_indices.default")
def max_pool3d_with_indices(self: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    results = aten.max_pool3d_with_indices.default(self, *args, **kwargs)
    return tuple(_in_format_of(self, result) for result in results)


@override("aten.max_pool3d_with_indices_backward.default")
def max_pool3d_with_indices_backward(grad_output: torch.Tensor, self: torch.Tensor, **arguments: Any) -> torch.Tensor:
    result = aten.max_pool3d_with_indices_backward.default(grad_output, self, **arguments)
    return _in_format_of(self, result)


def _in_format_of(image: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return the result of an image without a batch in the format of the image. torch's meta functions only keep the
    format of batches."""
    batch = image.unsqueeze(0)
    if image.dim() != 4 or batch.is_contiguous() or not batch.is_contiguous(memory_format=torch.channels_last_3d):
        return result
    return result.unsqueeze(0).contiguous(memory_format=torch.channels_last_3d).squeeze(0)


@override("aten.fractional_max_pool3d_backward.default")
def fractional_max_pool3d_backward(grad_output: torch.Tensor, self: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.empty(self.shape, dtype=self.dtype, device="meta")
