"""Matrix products with sparse matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lazytpu.frontend.sparse.parts import (
    Kernels,
    coalesce,
    indices_of,
    into,
    make,
    positions,
    sizes,
    summed,
    values_of,
)
from lazytpu.frontend.sparse.pointwise import with_out
from lazytpu.frontend.sparse.refusals import refuse


def _check(one: Tensor, other: Tensor) -> None:
    if one.dim() != 2 or other.dim() != 2 or one.shape[1] != other.shape[0]:
        shapes = " and ".join("x".join(map(str, t.shape)) for t in (one, other))
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({shapes})")
    if one.dtype != other.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {one.dtype} != {other.dtype}")


def mm(one: Tensor, other: Tensor) -> Tensor:
    """The kernel of aten::mm: (m, k) by (k, n); the result is sparse if both operands are, else dense."""
    _check(one, other)
    if not one.is_sparse:
        return mm(other.t(), one.t()).t()
    if one.dense_dim():
        refuse("the product of a sparse matrix with dense dims")
    if other.is_sparse:
        return sparse_by_sparse(one, other)
    row, column = indices_of(one)
    return summed(values_of(one)[:, None] * other[column], row, one.shape[0])


def sparse_by_sparse(one: Tensor, other: Tensor) -> Tensor:
    """The kernel of aten::_sparse_sparse_matmul: each element of `one` is multiplied by the row of `other` with the
    index of its column.

    The numbers of products and of resulting indices are read from the device: two cuts.
    """
    _check(one, other)
    one, other = coalesce(one), coalesce(other)
    (row, column), (starts, columns) = indices_of(one), indices_of(other)
    ends = torch.searchsorted(starts.contiguous(), torch.arange(other.shape[0] + 1, device=one.device))
    count = ends[column + 1] - ends[column]
    total = int(count.sum().item())
    lefts = torch.repeat_interleave(torch.arange(count.shape[0], device=one.device), count, output_size=total)
    rights = torch.arange(total, device=one.device) - (count.cumsum(0) - count)[lefts] + ends[column][lefts]
    indices = torch.stack([row[lefts], columns[rights]])
    return coalesce(make(indices, values_of(one)[lefts] * values_of(other)[rights], (one.shape[0], other.shape[1])))


def addmm(added: Tensor, one: Tensor, other: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """The kernel of aten::addmm: beta * added + alpha * (one @ other)."""
    product = mm(one, other) * alpha
    if added.is_sparse and not product.is_sparse:
        refuse("addmm of a sparse tensor and a dense product")
    return product if beta == 0 and not added.is_sparse else added * beta + product


def addmm_(added: Tensor, one: Tensor, other: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """The kernel of aten::addmm_."""
    return into(added, addmm(added, one, other, beta=beta, alpha=alpha))


def mv(one: Tensor, vector: Tensor) -> Tensor:
    """The kernel of aten::mv: (m, k) by (k,)."""
    if one.dim() != 2 or vector.dim() != 1 or one.shape[1] != vector.shape[0]:
        raise RuntimeError(f"mv: expected (m, k) and (k), got {list(one.shape)} and {list(vector.shape)}")
    return mm(one, vector[:, None])[:, 0]


def bmm(one: Tensor, other: Tensor) -> Tensor:
    """The kernel of aten::bmm: sparse (b, m, k) by dense (b, k, n)."""
    if not one.is_sparse or other.is_sparse or one.sparse_dim() != 3:
        refuse("a batched product other than sparse by dense, without dense dims,")
    if other.dim() != 3 or one.shape[0] != other.shape[0] or one.shape[2] != other.shape[1]:
        raise RuntimeError(f"bmm: expected (b, m, k) and (b, k, n), got {list(one.shape)} and {list(other.shape)}")
    indices, (batch, rows, _) = indices_of(one), sizes(one)
    products = values_of(one)[:, None] * other[indices[0], indices[2]]
    return summed(products, positions(indices[:2], (batch, rows)), batch * rows).reshape(batch, rows, -1)


KERNELS: Kernels = {
    "mm": mm,
    "mm.out": with_out(mm),
    "_sparse_sparse_matmul": sparse_by_sparse,
    "addmm": addmm,
    "addmm_": addmm_,
    "addmm.out": with_out(addmm),
    "mv": mv,
    "bmm": bmm,
    "bmm.out": with_out(bmm),
}
