"""`all_to_all` of parts of unequal sizes, on the device.

A rank knows only its own split sizes. So the members first exchange their sizes over gloo. Then each part is padded to
about the largest size, so that all members run the same program. The offsets of the parts are passed as index tensors:
other sizes need another program only if shapes change.
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
    """The methods of a process group for unequal parts. `members` are its global ranks."""

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
        """Run `all_to_all_single` with split sizes, in rows per member. An empty list means equal parts.

        Raises ValueError on all members when sizes do not add up, or two members disagree.
        """
        sent, received = (self._parts(*pair) for pair in ((input, input_sizes), (output, output_sizes)))
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
            padded = rows.index_select(0, _taken(sent, length, rows.device))
        else:
            padded = rows.new_zeros((len(sent) * length, *rows.shape[1:]))
        exchanged = self._record(OPS.all_to_all, dense(padded))
        if output.numel():
            put(output, exchanged.index_select(0, _filled(received, length, rows.device)))
        return self._handle([output])

    def exchange_lists(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> Any:
        """Run `all_to_all`: tensor i goes to member i. Tensors may have any shapes.

        Raises TypeError when the dtypes differ, and ValueError as `exchange`.
        """
        dtypes = {tensor.dtype for tensor in (*outputs, *inputs)}
        if len(dtypes) > 1:
            raise TypeError(f"all_to_all takes tensors of one dtype; these have {', '.join(sorted(map(str, dtypes)))}")
        sizes = [[tensor.numel() for tensor in tensors] for tensors in (inputs, outputs)]
        table = self._compared(*(tensors if len(tensors) == len(self.members) else None for tensors in sizes))
        largest = max(map(max, table)) * (2 if inputs[0].is_complex() else 1)
        if largest == 0:
            return self._handle(outputs)
        padded = [_filled_up(dense(tensors).reshape(-1), largest) for tensors in inputs]
        exchanged = self._record(OPS.all_to_all, dense(torch.stack(padded)))
        for output, flat in zip(outputs, exchanged, strict=True):
            sizes_of = [*output.shape, 2] if output.is_complex() else list(output.shape)
            if output.numel():
                put(output, flat[: torch.Size(sizes_of).numel()].reshape(sizes_of))
        return self._handle(outputs)

    def _parts(self, tensor: torch.Tensor, sizes: Sequence[int]) -> list[int] | None:
        """Return the rows of each part; None if the sizes do not add up to the tensor."""
        count, rows = len(self.members), tensor.shape[0]
        if not sizes:
            return [rows // count] * count if rows % count == 0 else None
        return list(sizes) if len(sizes) == count and sum(sizes) == rows and min(sizes) >= 0 else None

    def _compared(self, sent: list[int] | None, received: list[int] | None) -> list[list[int]]:
        """Exchange the sizes: an n x n table of the amount from each member to each other one.

        None stands for sizes that do not add up. Raises ValueError on all members if there is such a None, or a pair
        disagrees.
        """
        count = len(self.members)
        mine = [[-1] * count if table is None else table for table in (sent, received)]
        gathered = [torch.empty(2, count, dtype=torch.int64, device="cpu") for _ in self.members]
        options = AllgatherOptions()
        options.asyncOp = False
        self.on_host("allgather", [gathered], [torch.tensor(mine, dtype=torch.int64, device="cpu")], options).wait()
        pairs = [table.tolist() for table in gathered]
        for i, rank in enumerate(self.members):
            if -1 in (pairs[i][0][0], pairs[i][1][0]):
                raise ValueError(
                    f"all_to_all: the split sizes of rank {rank} are not {count} sizes that add up to its tensor. "
                    "Nothing was sent."
                )
        for i, rank in enumerate(self.members):
            for j, peer in enumerate(self.members):
                if pairs[i][0][j] != pairs[j][1][i]:
                    raise ValueError(
                        f"all_to_all: rank {rank} sends {pairs[i][0][j]} to rank {peer}, which expects "
                        f"{pairs[j][1][i]} (rows, or elements of tensors in a list). Nothing was sent."
                    )
        return [table[0] for table in pairs]


def rounded(length: int) -> int:
    """Round a length up by at most an eighth, so that many lengths share a program."""
    step = 1 << max(0, length.bit_length() - 4)
    return -(-length // step) * step


def _taken(sizes: Sequence[int], length: int, device: torch.device) -> torch.Tensor:
    """Return the source row of each padded row: [n * length]. Padding repeats arbitrary rows."""
    starts = torch.tensor([0, *accumulate(sizes[:-1])], device="cpu")
    rows = starts[:, None] + torch.arange(length, device="cpu")
    return rows.clamp_(max=sum(sizes) - 1).reshape(-1).to(torch.int32).to(device)


def _filled(sizes: Sequence[int], length: int, device: torch.device) -> torch.Tensor:
    """Return the positions of the real rows among the padded ones: [sum(sizes)]."""
    rows = [torch.arange(i * length, i * length + size, device="cpu") for i, size in enumerate(sizes)]
    return torch.cat(rows).to(torch.int32).to(device)


def _filled_up(flat: torch.Tensor, length: int) -> torch.Tensor:
    """Pad a flat tensor with zeros to `length`."""
    missing = length - flat.numel()
    return torch.cat([flat, flat.new_zeros(missing)]) if missing else flat
