"""CPU tensors as numpy arrays and back, sharing memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lazytpu.aten.dtypes import FLOATS8


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A contiguous CPU tensor as the array that programs take: bfloat16 of ml_dtypes, 8-bit floats as their bits in
    uint8. Shares the tensor's memory."""
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.view(torch.uint8).numpy() if tensor.dtype in FLOATS8 else tensor.numpy()


def from_numpy(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """The inverse of `to_numpy`, sharing the array's memory."""
    if dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array).view(dtype) if dtype in FLOATS8 else torch.from_numpy(array)
