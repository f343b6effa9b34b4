"""`all_reduce` of sparse tensors, such as the gradients of `Embedding(sparse=True)`: the indices and values of all
members are concatenated and coalesced.

Members have different numbers of elements. They exchange their counts over gloo, and pad to about the largest count, so
that the gathered tensors have equal shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lazytpu.distributed import reductions
from lazytpu.distributed.dense import dense
from lazytpu.distributed.ops import OPS
from lazytpu.distributed.unequal import rounded
from lazytpu.frontend.sparse.parts import indices_of, make, values_of
from lazytpu.frontend.torch_private import AllgatherOptions


def refuse(name: str, tensors: Any) -> None:
    """Raise NotImplementedError if a tensor is sparse."""
    for tensor in tensors:
        if isinstance(tensor, list | tuple):
            refuse(name, tensor)
        elif tensor.layout is not torch.strided:
            raise NotImplementedError(
                f"{name} of tensors of layout {tensor.layout} is not supported on 'tpu': make them dense first, with "
                ".to_dense(). all_reduce takes tensors of layout torch.sparse_coo"
            )


class SparseTensors:
    """The methods of a process group for sparse tensors. `members` are its global ranks."""

    members: list[int]

    def on_host(self, name: str, *args: Any) -> Any:
        raise NotImplementedError

    def _record(self, op: Any, *arguments: Any) -> torch.Tensor:
        raise NotImplementedError

    def reduce_sparse(self, tensor: torch.Tensor, options: Any) -> None:
        """Replace a sparse tensor by the sum, or average, over all members. The result is coalesced.

        Raises RuntimeError for other reductions, and ValueError on all members when the shapes differ.
        """
        kind, _ = reductions.reduce_op(options)
        if kind not in (reductions.SUM, reductions.AVG):
            raise RuntimeError(f"all_reduce of sparse tensors has no ReduceOp.{getattr(kind, 'name', kind)}")
        counts = self._counts(tensor)
        length = max(counts)
        if min(counts) < length:
            length = rounded(length)
        indices, values = indices_of(tensor), values_of(tensor)
        if length:
            gathered = self._gathered_parts(indices.t(), counts, length), self._gathered_parts(values, counts, length)
            indices, values = gathered[0].t(), gathered[1]
        summed = make(indices, values, tensor.shape).coalesce()
        if kind == reductions.AVG:
            summed = make(
                indices_of(summed), reductions.after(kind, values_of(summed), len(counts)), tensor.shape, True
            )
        tensor.copy_(summed)

    def _gathered_parts(self, mine: torch.Tensor, counts: Sequence[int], length: int) -> torch.Tensor:
        """Gather the rows of all members: [sum(counts), ...]. `part` has this member's rows, padded to `length` for
        sending."""
        missing = length - mine.shape[0]
        filled = torch.cat([mine, mine.new_zeros((missing, *mine.shape[1:]))]) if missing else mine
        gathered = self._record(OPS.all_gather, dense(filled))
        if mine.is_complex():
            gathered = torch.view_as_complex(gathered)
        return torch.cat([rows[:count] for rows, count in zip(gathered, counts, strict=True)])

    def _counts(self, tensor: torch.Tensor) -> list[int]:
        """Exchange the numbers of stored elements: one for each member. Raises ValueError if shapes differ."""
        header = torch.tensor([tensor._nnz(), tensor.sparse_dim(), *tensor.shape], dtype=torch.int64, device="cpu")
        headers = [torch.empty_like(header) for _ in self.members]
        options = AllgatherOptions()
        options.asyncOp = False
        self.on_host("allgather", [headers], [header], options).wait()
        counts, shapes = zip(*((header_of[0].item(), header_of[1:].tolist()) for header_of in headers), strict=True)
        if any(shape != shapes[0] for shape in shapes):
            listed = "; ".join(
                f"rank {rank}: {shape[1:]}, {shape[0]} of them sparse"
                for rank, shape in zip(self.members, shapes, strict=True)
            )
            raise ValueError(f"all_reduce: the ranks have sparse tensors of other shapes: {listed}. Nothing was sent.")
        return list(counts)
