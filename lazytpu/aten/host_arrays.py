"""CPU tensors as numpy arrays and back, sharing memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from lazytpu.aten.dtypes import FLOATS8


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A contiguous CPU tensor as the array that programs take: bfloat16 of ml_dtypes, 8-bit floats as their bits in
    uint8. Shares the tensor's memory, and leaves its storage resizable."""
    if tensor.dtype is torch.bfloat16:
        import ml_dtypes

        return _array(tensor.view(torch.int16)).view(ml_dtypes.bfloat16)
    return _array(tensor.view(torch.uint8) if tensor.dtype in FLOATS8 else tensor)


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    # `Tensor.numpy` fixes the size of its tensor's storage permanently. So call it on a second storage of the same
    # memory.
    return from_dlpack(torch.to_dlpack(tensor)).numpy()


def copied(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """Return a 1-D CPU tensor of `dtype` with a copy of an array's elements, which have the form of `to_numpy`."""
    tensor = torch.empty(array.size, dtype=dtype, device="cpu")
    np.copyto(to_numpy(tensor), array.reshape(-1))
    return tensor


_PLAIN = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bool, torch.int64, torch.int32, torch.int16, torch.int8}
    | {torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128}
)  # numpy and torch convert these to the same Python numbers


def number(array: np.ndarray[Any, Any], dtype: torch.dtype, index: int) -> Any:
    """The element with that index, in row-major order, of an array of `dtype`, as a Python number."""
    return array.item(index) if dtype in _PLAIN else copied(array, dtype)[index].item()


def from_numpy(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """The inverse of `to_numpy`, sharing the array's memory."""
    if dtype is torch.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array).view(dtype) if dtype in FLOATS8 else torch.from_numpy(array)
