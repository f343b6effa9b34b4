"""Each lowering that differs by platform gives on this one what torch gives on the CPU."""

from __future__ import annotations

import torch

from lazytpu.doctor.check import check
from lazytpu.doctor.samples import BY_PLATFORM, Given, Sample


@check(of=BY_PLATFORM, limit=90)
def lowering(name: str) -> str:
    """A template that is lowered otherwise on each platform gives what torch gives on the CPU."""
    return compare(BY_PLATFORM[name])


def compare(sample: Sample) -> str:
    """What was compared. Raises AssertionError when results differ from the CPU's."""
    wanted, got = (_tensors(sample(Given(device))) for device in ("cpu", "tpu"))
    for expected, tensor in zip(wanted, got, strict=True):
        torch.testing.assert_close(tensor.cpu(), expected, rtol=1e-3, atol=1e-4)
    return ", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in wanted)


def _tensors(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)
