"""Byte memory that is written as numbers: its storage changes to their dtype.

A cache of keys and values may be one tensor of bytes, with views of it in the dtype of the model, as in transformers'
continuous batching. A storage holds an array of the dtype with which it was created. So each program would convert the
whole cache to bytes and back, and on a TPU four adjacent bytes take a row of 128.

A bool that is written as a byte changes, too: its array would keep nothing but whether the byte is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.recording.codegen import KernelArgument
from lazytpu.frontend.tensors import assign, extent, layout, value_of, wrap
from lazytpu.frontend.torch_private import META, as_strided
from lazytpu.trace.value import EMPTY, Value, resident

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("retype(Tensor self, ScalarType dtype) -> Tensor")


@override("lazytpu.retype.default")
def _retype(self: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return self.new_empty((self.numel() // dtype.itemsize,), dtype=dtype)


def retype(tensors: Sequence[torch.Tensor]) -> None:
    """Replace the value of each storage of bytes by one of the tensor's dtype."""
    for tensor in tensors:
        value = value_of(tensor)
        if _is_bytes(value, tensor.dtype):  # another view of the same storage may have been the first
            assign(tensor, _numbers(value, tensor.dtype))


def written_bytes(arguments: Sequence[KernelArgument], args: Sequence[Any]) -> list[torch.Tensor]:
    """Return the arguments through which an op writes bytes as numbers."""
    written = [
        tensor
        for a, tensor in zip(arguments, args, strict=True)
        if a.kind == "tensor" and a.written and isinstance(tensor, torch.Tensor) and tensor.device.type == "tpu"
    ]
    return [tensor for tensor in written if _is_bytes(value_of(tensor), tensor.dtype)]


def _is_bytes(value: Value, dtype: torch.dtype) -> bool:
    """Return whether a value consists of bytes that form whole numbers of a dtype, or of bools that are its bytes."""
    base = value.layout
    if base.dtype is torch.bool:
        return dtype in (torch.uint8, torch.int8) and 0 not in base.shape
    divides = len(base.shape) == 1 and base.shape[0] > 0 and base.shape[0] % dtype.itemsize == 0
    return base.dtype is torch.uint8 and divides and dtype.itemsize > 1 and not dtype.is_complex


def _numbers(value: Value, dtype: torch.dtype) -> Value:
    base = value.layout
    memory = extent(base.shape, base.stride)
    if value.buffer is EMPTY:
        return resident(layout(dtype, (memory // dtype.itemsize,), (1,)), EMPTY)
    flat = as_strided(META, wrap(value), (memory,), (1,), 0)
    return value_of(torch.ops.lazytpu.retype.default(flat, dtype))
