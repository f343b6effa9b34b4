"""The parts of sparse tensors: indices and values, conversion between them and tensors, and look-ups of elements.

Shapes: indices (sparse dims, nnz) int64, values (nnz, *dense dims); `size` has the sparse, then the dense dimensions. A
*position* is the row-major number of an element among the sparse dimensions, int64 of shape (nnz,).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lazytpu.frontend.inference.indexing import scalar_type
from lazytpu.frontend.torch_private import Key, KeySet

aten = torch.ops.aten

# By this key, torch's own kernels that only read or replace indices and values run on any sparse tensor.
SPARSE = KeySet(Key.SparseCPU)

_make = aten._sparse_coo_tensor_with_dims_and_tensors.default.redispatch
_indices = aten._indices.default.redispatch
_values = aten._values.default.redispatch
_assign: Callable[..., Any] = aten.copy_sparse_to_sparse_.default.redispatch


def make(indices: Tensor, values: Tensor, size: Sequence[int], coalesced: bool = False) -> Tensor:
    """Create a sparse tensor of these parts, which it shares, on their device."""
    dims = indices.shape[0]
    kind = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": values.device}
    return _make(SPARSE, dims, len(size) - dims, list(size), indices, values, **kind, is_coalesced=coalesced)


def like(tensor: Tensor, values: Tensor) -> Tensor:
    """Return the sparse tensor with other values at the same indices."""
    size = (*tensor.shape[: tensor.sparse_dim()], *values.shape[1:])
    return make(indices_of(tensor), values, size, tensor.is_coalesced())


def indices_of(tensor: Tensor) -> Tensor:
    """Return the indices (sparse dims, nnz), also of a tensor that is not coalesced."""
    return _indices(SPARSE, tensor)


def values_of(tensor: Tensor) -> Tensor:
    """Return the values (nnz, *dense dims), also of a tensor that is not coalesced."""
    return _values(SPARSE, tensor)


def assign(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Give the sparse `target` a copy of the source's elements, in its own dtype and on its own device."""
    if source.device != target.device:
        indices, values = (tensor.to(target.device) for tensor in (indices_of(source), values_of(source)))
        source = make(indices, values, source.shape, source.is_coalesced())
    return _assign(SPARSE, target, source, non_blocking)


def sizes(tensor: Tensor) -> tuple[int, ...]:
    """Return the sizes of the sparse dimensions."""
    return tuple(tensor.shape[: tensor.sparse_dim()])


def positions(indices: Tensor, size: Sequence[int]) -> Tensor:
    """Return the position of each element among sparse dimensions of this size."""
    step, position = 1, torch.zeros(indices.shape[1], dtype=torch.int64, device=indices.device)
    for dim in reversed(range(len(size))):
        position = position + indices[dim] * step
        step *= size[dim]
    return position


def indices_at(position: Tensor, size: Sequence[int]) -> Tensor:
    """Return the inverse of `positions`: indices (len(size), nnz)."""
    rows: list[Tensor] = []
    for length in reversed(size):
        rows.append(position % max(length, 1))
        position = position.div(max(length, 1), rounding_mode="floor")
    if not rows:
        return torch.zeros((0, *position.shape), dtype=torch.int64, device=position.device)
    return torch.stack(rows[::-1])


def summed(values: Tensor, place: Tensor, count: int) -> Tensor:
    """Return the sum of all values with the same place, (count, *dense dims); "or" for bool."""
    if values.dtype is torch.bool:
        return summed(values.to(torch.int64), place, count) != 0
    return values.new_zeros((count, *values.shape[1:])).index_add_(0, place, values)


def coalesce(tensor: Tensor) -> Tensor:
    """The kernel of aten::_coalesce: each index once, in ascending order. The number of indices is read from the
    device: a cut."""
    indices, values = indices_of(tensor), values_of(tensor)
    if tensor.is_coalesced():
        return tensor
    if values.shape[0] < 2:
        return make(indices.clone(), values.clone(), tensor.shape, True)
    distinct, place = torch.unique(positions(indices, sizes(tensor)), return_inverse=True)
    return make(indices_at(distinct, sizes(tensor)), summed(values, place, distinct.shape[0]), tensor.shape, True)


def find(queries: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each of the positions `queries`, its index among the ascending positions `among` (0 if absent), and
    whether it is there."""
    if among.shape[0] == 0:
        return torch.zeros_like(queries), torch.zeros_like(queries, dtype=torch.bool)
    place = torch.searchsorted(among, queries).clamp(max=among.shape[0] - 1)
    return place, among[place] == queries


def look_up(tensor: Tensor, queries: Tensor) -> Tensor:
    """Return values (len(queries), *dense dims) of a sparse tensor at positions; 0 where it has no element."""
    tensor = coalesce(tensor)
    values = values_of(tensor)
    if values.shape[0] == 0:
        return values.new_zeros((queries.shape[0], *values.shape[1:]))
    place, present = find(queries, positions(indices_of(tensor), sizes(tensor)))
    return torch.where(present.reshape(-1, *[1] * (values.dim() - 1)), values[place], values.new_zeros(()))


def check_cast(result: Tensor, target: Tensor) -> None:
    """Raise torch's RuntimeError for a result that `target` cannot hold."""
    if not torch.can_cast(result.dtype, target.dtype):
        types = scalar_type(result.dtype), scalar_type(target.dtype)
        raise RuntimeError(f"result type {types[0]} can't be cast to the desired output type {types[1]}")


def into(out: Tensor, result: Tensor) -> Tensor:
    """Write the result of an op into its out= tensor, sparse or dense."""
    if out.layout is not result.layout:
        raise RuntimeError(f"expected out= to be a {result.layout} tensor, got {out.layout}")
    check_cast(result, out)
    if result.is_sparse:
        return assign(out, result)
    return out.resize_(result.shape).copy_(result)


Kernels = dict[str, Any]
