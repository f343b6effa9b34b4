"""A tensor's elements as numpy has them, and back: memory is shared where dtypes are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lazytpu.aten.dtypes import FLOATS8


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The elements of a contiguous CPU tensor as programs take them: bfloat16 through ml_dtypes, floats of 8 bits as
    their bits, uint8."""
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.view(torch.uint8).numpy() if tensor.dtype in FLOATS8 else tensor.numpy()


def from_numpy(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """The inverse of `to_numpy`, sharing the array's memory."""
    if dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array).view(dtype) if dtype in FLOATS8 else torch.from_numpy(array)
