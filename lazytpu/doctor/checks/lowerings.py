"""Lowerings that differ by platform, compared with torch on the CPU."""

from __future__ import annotations

import torch

from lazytpu.doctor.check import check
from lazytpu.doctor.samples import BY_PLATFORM, Given, Sample


@check(of=BY_PLATFORM, limit=90)
def lowering(name: str) -> str:
    """A template whose lowering depends on the platform agrees with torch on the CPU."""
    return compare(BY_PLATFORM[name])


def compare(sample: Sample) -> str:
    """Compare a sample with the CPU's and describe its results. Raises AssertionError if they differ."""
    references, results = (_tensors(sample(Given(device))) for device in ("cpu", "tpu"))
    for expected, tensor in zip(references, results, strict=True):
        torch.testing.assert_close(tensor.cpu(), expected, rtol=1e-3, atol=1e-4)
    return ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in references)


def _tensors(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)
