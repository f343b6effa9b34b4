"""Kernels that inspect, create, copy and convert sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lazytpu.frontend.ops.data_dependent import nonzero
from lazytpu.frontend.recording.creation import check_device
from lazytpu.frontend.sparse.parts import (
    SPARSE,
    Kernels,
    assign,
    coalesce,
    indices_of,
    make,
    positions,
    sizes,
    summed,
    values_of,
)
from lazytpu.frontend.sparse.refusals import refuse

aten = torch.ops.aten
_FORMATS = {
    torch.preserve_format: "Preserve",
    torch.contiguous_format: "Contiguous",
    torch.channels_last: "ChannelsLast",
    torch.channels_last_3d: "ChannelsLast3d",
}
"""torch's C++ names of memory formats."""


def _native(op: Any) -> Any:
    """Return torch's own kernel, which calls ops on the indices and values."""
    redispatch = op.redispatch
    return lambda *args, **kwargs: redispatch(SPARSE, *args, **kwargs)


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """The kernel of aten::empty.memory_format for a sparse layout: a tensor without elements."""
    check_device(device)
    kind = {"dtype": dtype or torch.get_default_dtype(), "layout": torch.sparse_coo, "device": device}
    with_dims = aten._sparse_coo_tensor_with_dims.default.redispatch
    return with_dims(SPARSE, len(size), 0, list(size), **kind)


def empty_like(
    tensor: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """The kernel of aten::empty_like: the same sparse and dense dimensions, without elements; or a dense tensor."""
    device, dtype = tensor.device if device is None else device, dtype or tensor.dtype
    if layout is torch.strided:
        dense = torch.contiguous_format if memory_format in (None, torch.preserve_format) else memory_format
        return torch.empty(tensor.shape, dtype=dtype, device=device, memory_format=dense)
    if memory_format is not None:
        raise RuntimeError("memory format option is only supported by strided tensors")
    indices, values = indices_of(tensor)[:, :0], values_of(tensor)[:0]
    return make(indices.to(device), values.to(device, dtype), tensor.shape, True)


def zero_(tensor: Tensor) -> Tensor:
    """The kernel of aten::zero_: a tensor without elements."""
    return assign(tensor, empty_like(tensor))


def clone(tensor: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
    """The kernel of aten::clone."""
    if memory_format is not None:
        raise RuntimeError(f"unsupported memory format option {_FORMATS[memory_format]}")
    return make(indices_of(tensor).clone(), values_of(tensor).clone(), tensor.shape, tensor.is_coalesced())


def copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The kernel of aten::copy_ between sparse tensors, at least one of them on tpu."""
    if not (target.is_sparse and source.is_sparse):
        raise RuntimeError(
            "copy_() between dense and sparse Tensors is not implemented! "
            f"Found self type = {target.type()} and src type = {source.type()}"
        )
    return assign(target, source, non_blocking)


def to_copy(
    tensor: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """The kernel of aten::_to_copy for a sparse tensor on tpu."""
    if layout is torch.strided:
        return to_dense(tensor, dtype).to(tensor.device if device is None else device)
    if layout not in (None, torch.sparse_coo):
        refuse(f"a tensor of layout {layout}")
    if memory_format not in (None, torch.preserve_format):
        name = _FORMATS[memory_format]
        raise RuntimeError(f"to(options): COO only supports memory format Preserve, but got {name} instead.")
    device = tensor.device if device is None else device
    indices = indices_of(tensor).to(device, copy=True)
    values = values_of(tensor).to(device, dtype or tensor.dtype, copy=True)
    return make(indices, values, tensor.shape, tensor.is_coalesced())


def to_dense(tensor: Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> Tensor:
    """The kernel of aten::_to_dense: elements with the same index are added."""
    values, size = values_of(tensor), sizes(tensor)
    dense = summed(values, positions(indices_of(tensor), size), torch.Size(size).numel())
    return dense.reshape(tensor.shape).to(dtype or tensor.dtype)


def to_sparse_dims(tensor: Tensor, sparse_dim: int) -> Tensor:
    """The kernel of aten::_to_sparse.sparse_dim for a dense tensor. The number of nonzero elements is read: a cut."""
    if not 0 <= sparse_dim <= tensor.dim() or (sparse_dim == 0 and tensor.dim() > 0):
        raise RuntimeError(
            f"sparse_dim argument must be in >0 when self.dim()>0 and <= self.dim(): got {sparse_dim} "
            f"for a tensor of {tensor.dim()} dims"
        )
    if tensor.dim() == 0:
        count = nonzero(tensor.reshape(1)).shape[0]
        indices = torch.zeros((0, count), dtype=torch.int64, device=tensor.device)
        return make(indices, tensor.reshape(1)[:count].clone(), (), True)
    marks = (tensor != 0).reshape(*tensor.shape[:sparse_dim], tensor.shape[sparse_dim:].numel())
    indices = nonzero(marks.any(-1)).t()
    return make(indices, tensor[tuple(indices.unbind(0))], tensor.shape, True)


def to_sparse(
    tensor: Tensor,
    *,
    layout: torch.layout | None = None,
    blocksize: Any = None,
    dense_dim: int | None = None,
) -> Tensor:
    """The kernel of aten::_to_sparse for a dense tensor."""
    if layout not in (None, torch.sparse_coo) or blocksize is not None:
        refuse(f"a tensor of layout {layout or torch.sparse_bsr}")
    return to_sparse_dims(tensor, tensor.dim() - (dense_dim or 0))


def sparse_as(tensor: Tensor, *, layout: Any = None, blocksize: Any = None, dense_dim: int | None = None) -> Tensor:
    """The kernel of aten::_to_sparse for a sparse tensor."""
    if layout not in (None, torch.sparse_coo) or blocksize is not None:
        refuse(f"a tensor of layout {layout or torch.sparse_bsr}")
    if dense_dim not in (None, tensor.dense_dim()):
        raise RuntimeError("to_sparse: conversion from Sparse to Sparse with dense_dim argument is not supported.")
    return tensor


def sparse_to_sparse(tensor: Tensor, sparse_dim: int) -> Tensor:
    """The kernel of aten::_to_sparse.sparse_dim for a sparse tensor."""
    if sparse_dim != tensor.sparse_dim():
        raise RuntimeError("to_sparse: conversion from Sparse to Sparse with sparse_dim argument not supported.")
    return tensor


_NATIVE = """_sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_with_dims _nnz _indices _values indices values
sparse_dim dense_dim _dimI _dimV is_coalesced _coalesced_ sparse_resize_ sparse_resize_and_clear_ resize_as_sparse_
copy_sparse_to_sparse_ permute unsqueeze cat _sparse_broadcast_to""".split()

KERNELS: Kernels = {
    **{name: _native(getattr(aten, name).default) for name in _NATIVE},
    "empty.memory_format": empty,
    "empty_like": empty_like,
    "zero_": zero_,
    "clone": clone,
    "copy_": copy_,
    "_to_copy": to_copy,
    "_to_dense": to_dense,
    "_to_sparse": sparse_as,
    "_to_sparse.sparse_dim": sparse_to_sparse,
    "_coalesce": coalesce,
}
OF_DENSE: Kernels = {"_to_sparse": to_sparse, "_to_sparse.sparse_dim": to_sparse_dims}
