"""torch.sparse.softmax and log_softmax: over the stored elements; all others count as -inf."""

from __future__ import annotations

import torch
from torch import Tensor

from lazytpu.frontend.sparse.parts import Kernels, coalesce, indices_of, like, look_up, positions, sizes, values_of


def _pools(tensor: Tensor, dim: int) -> tuple[Tensor, int]:
    """Return the pool of each element, and the number of pools. A pool is normalized together: its elements differ in
    `dim` only.

    The number is read from the device: a cut.
    """
    shared_dims = [d for d in range(tensor.sparse_dim()) if d != dim]
    distinct, pool = torch.unique(
        positions(indices_of(tensor)[shared_dims], [tensor.shape[d] for d in shared_dims]), return_inverse=True
    )
    return pool, distinct.shape[0]


def _pooled(values: Tensor, pool: Tensor, count: int) -> Tensor:
    """Return the sum over each pool, at each of its elements."""
    return values.new_zeros((count, *values.shape[1:])).index_add_(0, pool, values)[pool]


def _log_softmax(values: Tensor, pool: Tensor, count: int) -> Tensor:
    place = pool.reshape(-1, *[1] * (values.dim() - 1)).expand(values.shape)
    largest = values.new_zeros((count, *values.shape[1:])).scatter_reduce_(0, place, values, "amax", include_self=False)
    shifted = values - largest[pool]
    return shifted - _pooled(shifted.exp(), pool, count).log()


def log_softmax(tensor: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """The kernel of aten::_sparse_log_softmax."""
    tensor, dim = coalesce(tensor), range(tensor.dim())[dim]
    values = values_of(tensor)
    if dim >= tensor.sparse_dim():
        return like(tensor, values.log_softmax(dim - tensor.sparse_dim() + 1))
    return like(tensor, _log_softmax(values, *_pools(tensor, dim)))


def softmax(tensor: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """The kernel of aten::_sparse_softmax."""
    result = log_softmax(tensor, dim)
    return like(result, values_of(result).exp())


def _passed_back(grad: Tensor, output: Tensor, dim: int, logarithmic: bool) -> Tensor:
    output, dim = coalesce(output), range(output.dim())[dim]
    values = values_of(output)
    grads = look_up(grad, positions(indices_of(output), sizes(output)))
    weights, terms = (values.exp(), grads) if logarithmic else (values, grads * values)
    if dim >= output.sparse_dim():
        total = terms.sum(dim - output.sparse_dim() + 1, keepdim=True)
    else:
        total = _pooled(terms, *_pools(output, dim))
    return like(output, (grads - weights * total) if logarithmic else weights * (grads - total))


def softmax_backward(grad: Tensor, output: Tensor, dim: int, tensor: Tensor) -> Tensor:
    """The kernel of aten::_sparse_softmax_backward_data."""
    return _passed_back(grad, output, dim, False)


def log_softmax_backward(grad: Tensor, output: Tensor, dim: int, tensor: Tensor) -> Tensor:
    """The kernel of aten::_sparse_log_softmax_backward_data."""
    return _passed_back(grad, output, dim, True)


KERNELS: Kernels = {
    "_sparse_softmax": softmax,
    "_sparse_log_softmax": log_softmax,
    "_sparse_softmax_backward_data": softmax_backward,
    "_sparse_log_softmax_backward_data": log_softmax_backward,
}
