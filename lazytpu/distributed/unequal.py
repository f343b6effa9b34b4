"""`all_to_all` of parts of any size, on the device.

A rank knows how it splits its own tensors, and not how the others split theirs. So the members first tell each other,
over gloo: a few numbers. Then all know the largest part, and each part is filled up to about that size, so that the
program is the same on all of them. Where the parts of a tensor begin is data of that rank, in tensors of indices: other
sizes at the next call need other programs only where tensors have other shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from lazytpu.distributed.dense import dense, put
from lazytpu.distributed.ops import OPS
from lazytpu.frontend.torch_private import AllgatherOptions


class UnequalParts:
    """The part of a process group of the ranks `members` that does this."""

    members: list[int]

    def on_host(self, name: str, *args: Any) -> Any:
        raise NotImplementedError

    def _record(self, op: Any, *arguments: Any) -> torch.Tensor:
        raise NotImplementedError

    def _handle(self, result: Any) -> Any:
        raise NotImplementedError

    def exchange(
        self, output: torch.Tensor, input: torch.Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int]
    ) -> Any:
        """`all_to_all_single` with split sizes: rows that go to each member, and come from it. None are equal parts.

        Raises ValueError, on all members, when the sizes of one do not add up, or two of them disagree.
        """
        sent, received = (self._parts(*each) for each in ((input, input_sizes), (output, output_sizes)))
        table = self._compared(sent, received)
        assert sent is not None and received is not None
        largest = max(map(max, table))
        if largest == 0:
            return self._handle([output])
        rows = dense(input)
        if min(map(min, table)) == largest:
            put(output, self._record(OPS.all_to_all, rows))
            return self._handle([output])
        length = rounded(largest)
        if rows.shape[0]:
            filled = rows.index_select(0, _taken(sent, length, rows.device))
        else:
            filled = rows.new_zeros((len(sent) * length, *rows.shape[1:]))
        made = self._record(OPS.all_to_all, dense(filled))
        if output.numel():
            put(output, made.index_select(0, _filled(received, length, rows.device)))
        return self._handle([output])

    def exchange_lists(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> Any:
        """`all_to_all`: tensor i goes to member i, of any shape.

        Raises TypeError when the tensors have several dtypes, and ValueError as `exchange`.
        """
        dtypes = {tensor.dtype for tensor in (*outputs, *inputs)}
        if len(dtypes) > 1:
            raise TypeError(f"all_to_all takes tensors of one dtype; these have {', '.join(sorted(map(str, dtypes)))}")
        sizes = [[tensor.numel() for tensor in each] for each in (inputs, outputs)]
        table = self._compared(*(each if len(each) == len(self.members) else None for each in sizes))
        largest = max(map(max, table)) * (2 if inputs[0].is_complex() else 1)
        if largest == 0:
            return self._handle(outputs)
        parts = [_filled_up(dense(each).reshape(-1), largest) for each in inputs]
        made = self._record(OPS.all_to_all, dense(torch.stack(parts)))
        for output, part in zip(outputs, made, strict=True):
            real = [*output.shape, 2] if output.is_complex() else list(output.shape)
            if output.numel():
                put(output, part[: torch.Size(real).numel()].reshape(real))
        return self._handle(outputs)

    def _parts(self, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int] | None:
        """The rows of each part; None if they do not add up."""
        count, rows = len(self.members), tensor.shape[0]
        if not sizes:
            return [rows // count] * count if rows % count == 0 else None
        return list(sizes) if len(sizes) == count and sum(sizes) == rows and min(sizes) >= 0 else None

    def _compared(self, sent: list[int] | None, received: list[int] | None) -> list[list[int]]:
        """[n][n]: how much goes from each member to each other one. None says that the sizes of this one do not add
        up."""
        count = len(self.members)
        own = [[-1] * count if each is None else each for each in (sent, received)]
        told = [torch.empty(2, count, dtype=torch.int64, device="cpu") for _ in self.members]
        options = AllgatherOptions()
        options.asyncOp = False
        self.on_host("allgather", [told], [torch.tensor(own, dtype=torch.int64, device="cpu")], options).wait()
        both = [each.tolist() for each in told]
        for i, rank in enumerate(self.members):
            if -1 in (both[i][0][0], both[i][1][0]):
                raise ValueError(
                    f"all_to_all: the split sizes of rank {rank} are not {count} sizes that add up to its tensor. "
                    "Nothing was sent."
                )
        for i, rank in enumerate(self.members):
            for j, other in enumerate(self.members):
                if both[i][0][j] != both[j][1][i]:
                    raise ValueError(
                        f"all_to_all: rank {rank} sends {both[i][0][j]} to rank {other}, which expects {both[j][1][i]} "
                        "(rows, or elements of tensors in a list). Nothing was sent."
                    )
        return [each[0] for each in both]


def rounded(length: int) -> int:
    """A length that few lengths share, at most an eighth longer."""
    step = 1 << max(0, length.bit_length() - 4)
    return -(-length // step) * step


def _taken(sizes: Sequence[int], length: int, device: torch.device) -> torch.Tensor:
    """[n * length]: the rows of each part, and any rows to fill it up."""
    starts = torch.tensor([0, *accumulate(sizes[:-1])], device="cpu")
    rows = starts[:, None] + torch.arange(length, device="cpu")
    return rows.clamp_(max=sum(sizes) - 1).reshape(-1).to(torch.int32).to(device)


def _filled(sizes: Sequence[int], length: int, device: torch.device) -> torch.Tensor:
    """[sum(sizes)]: where the rows are among parts that were filled up."""
    rows = [torch.arange(i * length, i * length + size, device="cpu") for i, size in enumerate(sizes)]
    return torch.cat(rows).to(torch.int32).to(device)


def _filled_up(flat: torch.Tensor, length: int) -> torch.Tensor:
    """A part, and zeros after it."""
    missing = length - flat.numel()
    return torch.cat([flat, flat.new_zeros(missing)]) if missing else flat
