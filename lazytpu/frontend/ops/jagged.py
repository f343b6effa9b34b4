"""Conversion of nested tensors in the jagged layout, whose rows are concatenated, to padded tensors and back: the
device computes the row positions from the offsets.

Strided nested tensors are rejected before torch creates them: with gradients, torch crashes when it reads their sizes.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor


def _offsets(offsets: list[Tensor], name: str) -> Tensor:
    """Return the start of each sequence, followed by the number of rows. Raises RuntimeError for other offsets."""
    if len(offsets) != 1:
        raise RuntimeError(f"{name}(): only a single jagged dim is supported for now")
    if offsets[0].dim() != 1:
        raise RuntimeError(f"{name}(): expected 1D offsets, but got offsets.dim() == {offsets[0].dim()}")
    return offsets[0]


def jagged_to_padded(
    values: Tensor, offsets: list[Tensor], max_lengths: list[int], padding_value: float = 0.0
) -> Tensor:
    """The kernel of aten::_jagged_to_padded_dense_forward: [B, max_lengths[0], ·] from rows [N, ·].

    Sequences are padded at the end, and longer ones are truncated.
    """
    starts, length = _offsets(offsets, "_jagged_to_padded_dense_forward"), max_lengths[0]
    batch, row_shape = len(starts) - 1, values.shape[1:]
    if not len(values):
        return values.new_full((batch, length, *row_shape), padding_value)
    steps = torch.arange(length, device=values.device)
    inside = steps < (starts[1:] - starts[:-1])[:, None]
    places = torch.where(inside, starts[:-1, None] + steps, 0)
    rows = values.index_select(0, places.reshape(-1)).reshape(batch, length, *row_shape)
    inside = inside.reshape(batch, length, *[1] * len(row_shape))
    return torch.where(inside, rows, torch.full((), padding_value, dtype=values.dtype, device=values.device))


def padded_to_jagged(dense: Tensor, offsets: list[Tensor], total_L: int | None = None) -> Tensor:
    """The kernel of aten::_padded_dense_to_jagged_forward: rows [total_L, ·] from [B, T, ·]. Without a total it is
    read.

    Raises RuntimeError for a tensor without these two dimensions. At a later host read, raises RuntimeError if the
    offsets have another total, and IndexError if a sequence is longer than T.
    """
    name = "_padded_dense_to_jagged_forward"
    starts = _offsets(offsets, name)
    if dense.dim() < 2:
        raise RuntimeError(f"{name}(): expected padded dim >= 2, but padded.dim() == {dense.dim()}")
    lengths = starts[1:] - starts[:-1]
    sequence = torch.repeat_interleave(lengths, output_size=total_L)
    step = torch.arange(len(sequence), device=dense.device) - starts[sequence]
    return dense[sequence, step]


def strided_nested(*_: Any, **__: Any) -> NoReturn:
    """The kernel of aten::_nested_tensor_from_tensor_list, which always raises."""
    raise NotImplementedError("a strided nested tensor is not supported on 'tpu'; pass layout=torch.jagged")


KERNELS: dict[str, Any] = {
    "_nested_tensor_from_tensor_list": strided_nested,
    "_jagged_to_padded_dense_forward": jagged_to_padded,
    "_padded_dense_to_jagged_forward": padded_to_jagged,
}
