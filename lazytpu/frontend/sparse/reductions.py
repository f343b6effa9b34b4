"""Sums and norms of sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lazytpu.frontend.sparse.parts import (
    Kernels,
    coalesce,
    indices_of,
    look_up,
    make,
    positions,
    values_of,
)
from lazytpu.frontend.sparse.refusals import refuse

aten = torch.ops.aten


def total(tensor: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """The kernel of aten::sum."""
    return values_of(tensor).sum(dtype=dtype)


def _split(tensor: Tensor, dims: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return the sparse dimensions that remain, the sparse dimensions that are summed, and the dimensions of values
    that are summed."""
    summed = sorted(d % tensor.dim() for d in dims)
    sparse = tensor.sparse_dim()
    return (
        [d for d in range(sparse) if d not in summed],
        [d for d in summed if d < sparse],
        [d - sparse + 1 for d in summed if d >= sparse],
    )


def sum_of_dims(
    tensor: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The kernel of aten::sum.dim_IntList: sparse while a sparse dimension remains.

    As in torch's `sum_sparse_coo`, an empty `dim` sums nothing, and with `keepdim` adds a dimension for each existing
    one.
    """
    dtype = dtype or (tensor.dtype if tensor.is_floating_point() or tensor.is_complex() else torch.int64)
    if dim is None:
        dim, result = (), total(tensor, dtype=dtype)
    else:
        result = aten._sparse_sum.dim_dtype(tensor, dim, dtype=dtype)
    for d in (sorted(d % tensor.dim() for d in dim) or range(tensor.dim())) if keepdim else ():
        result = result.unsqueeze(d)
    return result


def sum_backward(grad: Tensor, tensor: Tensor, dim: Sequence[int]) -> Tensor:
    """The kernel of aten::_sparse_sum_backward: the gradient of torch.sparse.sum, at the indices of its input."""
    tensor = coalesce(tensor)
    remaining, _, dense = _split(tensor, dim)
    indices, values = indices_of(tensor), values_of(tensor)
    if grad.is_sparse:
        values_of_grad = look_up(grad, positions(indices[remaining], [tensor.shape[d] for d in remaining]))
    else:
        values_of_grad = grad.unsqueeze(0)
    for d in dense:
        values_of_grad = values_of_grad.unsqueeze(d)
    return make(indices, values_of_grad.expand(values.shape).contiguous(), tensor.shape, True)


def norm(tensor: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The kernel of aten::native_norm and aten::norm over all elements."""
    if keepdim or (dim and len(set(dim)) != tensor.dim()):
        refuse("a norm over some dims of a sparse tensor")
    return torch.linalg.vector_norm(values_of(coalesce(tensor)), 2 if p is None else p, dtype=dtype)


def norm_with_dtype(tensor: Tensor, p: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The kernel of aten::norm.ScalarOpt_dim_dtype."""
    return norm(tensor, p, dim, keepdim, dtype)


def vector_norm(tensor: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The kernel of aten::linalg_vector_norm over all elements, which gradient clipping calls."""
    if ord <= 0:
        refuse(f"the norm of order {ord} of a sparse tensor")
    return norm(tensor, ord, dim, keepdim, dtype)


def any_(tensor: Tensor) -> Tensor:
    """The kernel of aten::any."""
    return values_of(coalesce(tensor)).any()


KERNELS: Kernels = {
    "sum": total,
    "sum.dim_IntList": sum_of_dims,
    "_sparse_sum_backward": sum_backward,
    "native_norm": norm,
    "native_norm.ScalarOpt_dim_dtype": norm,
    "norm.ScalarOpt_dim": norm,
    "norm.ScalarOpt_dim_dtype": norm_with_dtype,
    "linalg_vector_norm": vector_norm,
    "any": any_,
}
