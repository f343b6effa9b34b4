"""repr() of tpu tensors: torch formats one copy on the CPU, instead of recording a dozen ops."""

from __future__ import annotations

from typing import Any

import torch

from lazytpu.frontend.torch_private import tensor_str


def install() -> None:
    """Let torch format the contents of a tpu tensor from a copy on the CPU."""
    original = tensor_str._tensor_str

    def from_cpu(tensor: torch.Tensor, indent: int) -> Any:
        if tensor.device.type == "tpu":
            tensor = tensor.detach().cpu()
        return original(tensor, indent)

    tensor_str._tensor_str = from_cpu
