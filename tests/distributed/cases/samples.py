"""The tensors that the cases of collectives send: each rank knows the tensors of all ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def sample_of(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return the tensor of a rank, on the CPU."""
    sample = torch.randn(shape, generator=torch.Generator().manual_seed(rank)) * 3
    if dtype.is_complex:
        return torch.complex(sample, sample.flip(0) if sample.dim() else sample).to(dtype)
    return sample.abs().to(dtype) if dtype == torch.uint8 else sample.to(dtype)


def samples_of_all(dtype: torch.dtype, *shape: int) -> list[torch.Tensor]:
    """Return the tensors of all ranks, on the CPU."""
    return [sample_of(rank, dtype, *shape) for rank in range(dist.get_world_size())]


def own(samples: list[torch.Tensor]) -> torch.Tensor:
    """Return the tensor of this rank, on the device."""
    return samples[dist.get_rank()].to("tpu")
