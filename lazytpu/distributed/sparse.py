"""`all_reduce` of sparse tensors, as of the gradients of `Embedding(sparse=True)`: indices and values of all members,
one after the other.

Each member has as many as it has. They tell each other over gloo, and fill theirs up to about the largest number, so
that what is sent has one shape.
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
    """Raises NotImplementedError for sparse tensors."""
    for each in tensors:
        if isinstance(each, list | tuple):
            refuse(name, each)
        elif each.layout is not torch.strided:
            raise NotImplementedError(
                f"{name} of tensors of layout {each.layout} is not supported on 'tpu': make them dense first, with "
                ".to_dense(). all_reduce takes tensors of layout torch.sparse_coo"
            )


class SparseTensors:
    """The part of a process group of the ranks `members` that does this."""

    members: list[int]

    def on_host(self, name: str, *args: Any) -> Any:
        raise NotImplementedError

    def _record(self, op: Any, *arguments: Any) -> torch.Tensor:
        raise NotImplementedError

    def reduce_sparse(self, tensor: torch.Tensor, options: Any) -> None:
        """Give a sparse tensor the sum, or the average, of those of all members; it is coalesced then.

        Raises RuntimeError for another reduction, and ValueError, on all members, when the shapes differ.
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
            every = self._gathered_parts(indices.t(), counts, length), self._gathered_parts(values, counts, length)
            indices, values = every[0].t(), every[1]
        summed = make(indices, values, tensor.shape).coalesce()
        if kind == reductions.AVG:
            summed = make(
                indices_of(summed), reductions.after(kind, values_of(summed), len(counts)), tensor.shape, True
            )
        tensor.copy_(summed)

    def _gathered_parts(self, part: torch.Tensor, counts: Sequence[int], length: int) -> torch.Tensor:
        """[sum(counts), ...]: the rows of all members, of which this one has `part`."""
        missing = length - part.shape[0]
        filled = torch.cat([part, part.new_zeros((missing, *part.shape[1:]))]) if missing else part
        gathered = self._record(OPS.all_gather, dense(filled))
        if part.is_complex():
            gathered = torch.view_as_complex(gathered)
        return torch.cat([each[:count] for each, count in zip(gathered, counts, strict=True)])

    def _counts(self, tensor: torch.Tensor) -> list[int]:
        """How many elements each member has."""
        own = torch.tensor([tensor._nnz(), tensor.sparse_dim(), *tensor.shape], dtype=torch.int64, device="cpu")
        told = [torch.empty_like(own) for _ in self.members]
        options = AllgatherOptions()
        options.asyncOp = False
        self.on_host("allgather", [told], [own], options).wait()
        counts, shapes = zip(*((each[0].item(), each[1:].tolist()) for each in told), strict=True)
        if any(shape != shapes[0] for shape in shapes):
            what = "; ".join(
                f"rank {rank}: {shape[1:]}, {shape[0]} of them sparse"
                for rank, shape in zip(self.members, shapes, strict=True)
            )
            raise ValueError(f"all_reduce: the ranks have sparse tensors of other shapes: {what}. Nothing was sent.")
        return list(counts)
