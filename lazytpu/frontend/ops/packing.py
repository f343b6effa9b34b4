"""Packed sequences (torch.nn.utils.rnn) as one record each way: torch's functions copy each stretch of time steps that
has the same sequences, in several ops, and each time step in the backward pass.

What a step packs has a shape of its own for each set of lengths, and so a program; so the lengths are part of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.torch_private import by_torch, is_transformed

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("pack(Tensor input, int[] batch_sizes) -> Tensor")
LIBRARY.define("unpack(Tensor data, int[] batch_sizes, Scalar padding, int length) -> Tensor")
OPS: Any = torch.ops.lazytpu
aten: Any = torch.ops.aten


def _listed(numbers: Tensor) -> list[int]:
    """Lengths or batch sizes; none if torch refuses the tensor."""
    usable = numbers.dim() == 1 and numbers.device.type == "cpu" and numbers.dtype is torch.int64
    return numbers.tolist() if usable else []


def pack_padded_sequence(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """aten::_pack_padded_sequence: (rows of all steps, batch sizes), the latter on the CPU."""
    steps = input.transpose(0, 1) if batch_first and input.dim() > 1 else input
    ends = _listed(lengths)
    fits = bool(ends) and steps.dim() > 1 and input.numel() > 0 and len(ends) == steps.shape[1]
    if not fits or ends != sorted(ends, reverse=True) or not 0 < ends[-1] <= ends[0] <= len(steps) or is_transformed():
        return by_torch(aten._pack_padded_sequence.default, input, lengths, batch_first)
    batch_sizes = [sum(end > t for end in ends) for t in range(ends[0])]
    return OPS.pack(steps, batch_sizes), torch.tensor(batch_sizes)


def pad_packed_sequence(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """aten::_pad_packed_sequence: ([steps, sequences, ·], lengths), the latter on the CPU."""
    sizes = _listed(batch_sizes)
    fits = bool(sizes) and sum(sizes) == len(data) and sizes == sorted(sizes, reverse=True) and sizes[-1] > 0
    if not fits or 0 < total_length < len(sizes) or is_transformed():
        return by_torch(aten._pad_packed_sequence.default, data, batch_sizes, batch_first, padding_value, total_length)
    padded = OPS.unpack(data, sizes, padding_value, max(len(sizes), total_length))
    lengths = torch.tensor([sum(size > i for size in sizes) for i in range(sizes[0])])
    return padded.transpose(0, 1) if batch_first else padded, lengths


@override("lazytpu.pack.default")
def _pack(input: Tensor, batch_sizes: list[int]) -> Tensor:
    return input.new_empty((sum(batch_sizes), *input.shape[2:]))


@override("lazytpu.unpack.default")
def _unpack(data: Tensor, batch_sizes: list[int], length: int, **rest: Any) -> Tensor:
    return data.new_empty((length, batch_sizes[0], *data.shape[1:]))


def _save_pack(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, ctx.batch_sizes = inputs
    ctx.length = len(input)


def _of_pack(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return OPS.unpack(grad, ctx.batch_sizes, 0, ctx.length), None


def _save_unpack(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.batch_sizes = inputs[1]


def _of_unpack(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return OPS.pack(grad, ctx.batch_sizes), None, None, None


torch.library.register_autograd("lazytpu::pack", _of_pack, setup_context=_save_pack, lib=LIBRARY)
torch.library.register_autograd("lazytpu::unpack", _of_unpack, setup_context=_save_unpack, lib=LIBRARY)

COMPOSITES: dict[str, Any] = {
    "_pack_padded_sequence": pack_padded_sequence,
    "_pad_packed_sequence": pad_packed_sequence,
}
