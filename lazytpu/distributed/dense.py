"""Convert tensors to and from the form that collectives take: dense, row-major, complex numbers as pairs of reals."""

from __future__ import annotations

import torch

from lazytpu.frontend.tensors import assign, is_natural, value_of
from lazytpu.trace.value import EMPTY


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as a tensor that is row-major and covers its storage; the tensor itself, if it is one.

    A complex tensor becomes a real one of shape [..., 2]. Memory that nothing has written is filled with zeros first.
    Otherwise it would be a constant of this rank's program alone, and XLA computes an all_reduce of a constant without
    the other ranks.
    """
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.device.type == "cpu":
        return tensor.contiguous()
    value = value_of(tensor)
    if value.buffer is EMPTY:
        return torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    if tensor.is_contiguous() and is_natural(tensor, value.layout):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def put(target: torch.Tensor, result: torch.Tensor) -> None:
    """Write the result of a collective into `target`, which has as many elements.

    If both tensors cover their storages in the same layout, the storage takes over the value without a copy.
    """
    target = target.detach()
    if target.is_complex() and not result.is_complex():
        target = torch.view_as_real(target)
    if target.device.type == "cpu":
        target.copy_(result.reshape(target.shape))
        return
    value = value_of(result)
    if is_natural(target, value_of(target).layout) and is_natural(result, value.layout):
        if value.layout is value_of(target).layout:
            assign(target, value)
            return
    target.copy_(result.reshape(target.shape))
