"""Selection of elements: from a sparse tensor along a dimension, and from any tensor at the indices of a sparse one."""

from __future__ import annotations

import torch
from torch import Tensor

from lazytpu.frontend.ops.data_dependent import nonzero
from lazytpu.frontend.sparse.parts import Kernels, indices_of, like, look_up, make, positions, sizes, values_of


def index_select(tensor: Tensor, dim: int, index: Tensor) -> Tensor:
    """The kernel of aten::index_select. Along a sparse dimension the number of elements is read from the device: a
    cut."""
    if index.dim() > 1 or index.dtype not in (torch.int64, torch.int32):
        raise IndexError(
            f"index_select(): expected a vector of integers as index, got {index.dtype} {list(index.shape)}"
        )
    dim, index = range(tensor.dim())[dim], index.reshape(-1)
    indices, values = indices_of(tensor), values_of(tensor)
    size = [*tensor.shape[:dim], index.shape[0], *tensor.shape[dim + 1 :]]
    if dim >= tensor.sparse_dim():
        return make(indices, values.index_select(dim - tensor.sparse_dim() + 1, index), size, tensor.is_coalesced())
    places, element = nonzero(index[:, None] == indices[dim]).unbind(1)
    rows = [places if d == dim else row[element] for d, row in enumerate(indices)]
    return make(torch.stack(rows), values[element], size)


def select(tensor: Tensor, dim: int, index: int) -> Tensor:
    """The kernel of aten::select.int. The result is dense when it removes the only sparse dimension; otherwise the
    kernel cuts, as index_select does."""
    length = tensor.shape[range(tensor.dim())[dim]]
    if not -length <= index < length:
        raise IndexError(
            f"select(): index {index} out of range for tensor of size {list(tensor.shape)} at dimension {dim}"
        )
    dim, index = range(tensor.dim())[dim], range(length)[index]
    size, sparse = [*tensor.shape[:dim], *tensor.shape[dim + 1 :]], tensor.sparse_dim()
    if dim >= sparse:
        return make(indices_of(tensor), values_of(tensor).select(dim - sparse + 1, index), size, tensor.is_coalesced())
    chosen = nonzero(indices_of(tensor)[dim] == index).reshape(-1)
    values = values_of(tensor)[chosen]
    if sparse == 1:
        return values.sum(0)
    remaining = [row[chosen] for d, row in enumerate(indices_of(tensor)) if d != dim]
    return make(torch.stack(remaining), values, size, tensor.is_coalesced())


def narrow_copy(tensor: Tensor, dim: int, start: int, length: int) -> Tensor:
    """The kernel of aten::narrow_copy."""
    dim = range(tensor.dim())[dim]
    return index_select(tensor, dim, torch.arange(start, start + length, device=tensor.device))


def sparse_mask(tensor: Tensor, mask: Tensor) -> Tensor:
    """The kernel of aten::sparse_mask: the tensor's elements at the indices of the sparse mask."""
    if tensor.shape != mask.shape:
        raise RuntimeError(f"sparse_mask: expected the shape of the mask, {list(mask.shape)}, got {list(tensor.shape)}")
    size = sizes(mask)
    queries = positions(indices_of(mask), size)
    if tensor.is_sparse:
        return like(mask, look_up(tensor, queries))
    rows = tensor.reshape(torch.Size(size).numel(), *tensor.shape[len(size) :])
    return like(mask, rows.index_select(0, queries))


def mask_projection(tensor: Tensor, mask: Tensor, accumulate_matches: bool = False) -> Tensor:
    """The kernel of aten::_sparse_mask_projection."""
    return sparse_mask(tensor, mask)


KERNELS: Kernels = {
    "index_select": index_select,
    "select.int": select,
    "narrow_copy": narrow_copy,
    "sparse_mask": sparse_mask,
    "_sparse_mask_projection": mask_projection,
}
OF_DENSE: Kernels = {"sparse_mask": sparse_mask}
