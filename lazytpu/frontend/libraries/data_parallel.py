"""`nn.DataParallel` over the single device: torch's scatter is C++ that only CUDA builds have."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import comm


def install() -> None:
    """Replace a scatter to tpu:0 alone by a copy; other scatters stay torch's."""
    native = comm.scatter

    def scatter(tensor: torch.Tensor, devices: Any = None, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is not None and accelerator.type == "tpu" and devices is not None and len(devices) == 1:
            return (tensor.to(accelerator),)
        return native(tensor, devices, *args, **kwargs)

    comm.scatter = scatter
