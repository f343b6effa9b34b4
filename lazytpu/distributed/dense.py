"""Tensors as collectives take them: as they lie in memory, row-major, complex numbers as pairs."""

from __future__ import annotations

import torch

from lazytpu.frontend.tensors import assign, is_natural, value_of
from lazytpu.trace.value import EMPTY


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements as one that covers its storage, row-major: itself, if it does.

    Memory that nothing has written is written first. It would be a constant of the collective's program, on this rank
    alone, and XLA computes an all_reduce of a constant without the other ranks.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    value = value_of(tensor)
    if value.buffer is EMPTY:
        return torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    if tensor.is_contiguous() and is_natural(tensor, value.layout):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def put(target: torch.Tensor, made: torch.Tensor) -> None:
    """Write what a collective made into a tensor of as many elements. If the tensor covers its storage, that takes over
    the value; nothing is copied."""
    target = target.detach()
    if target.is_complex() and not made.is_complex():
        target = torch.view_as_real(target)
    value = value_of(made)
    if is_natural(target, value_of(target).layout) and is_natural(made, value.layout):
        if value.layout is value_of(target).layout:
            assign(target, value)
            return
    target.copy_(made.reshape(target.shape))
