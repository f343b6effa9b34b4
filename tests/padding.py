"""Padded values on the device, created by tests: their arrays are larger than their tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lazytpu.engine.launching.padding import fitted
from lazytpu.frontend.storage.copies import materialize
from lazytpu.frontend.tensors import value_of
from lazytpu.runtime.buffers.padded import PaddedBuffer
from lazytpu.runtime.buffers.repadding import Memory


def pad(tensor: torch.Tensor, memory: Mapping[int, int] | Memory) -> torch.Tensor:
    """Give the storage of a "tpu" tensor a padded array and return the tensor. `memory` has the sizes of all dims, or
    of some dims, in memory order."""
    value = value_of(tensor)
    buffer = materialize(value)
    shape = value.layout.memory_shape
    if isinstance(memory, Mapping):
        memory = tuple([memory.get(dim, size) for dim, size in enumerate(shape)])
    array = fitted(buffer, memory)
    value.buffer = PaddedBuffer(array, array.nbytes, memory, shape, buffer.origin, buffer.outcome)
    return tensor


def buffer_of(tensor: torch.Tensor) -> PaddedBuffer:
    """The padded buffer of a tensor."""
    buffer = value_of(tensor).buffer
    assert isinstance(buffer, PaddedBuffer)
    return buffer
