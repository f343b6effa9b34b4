"""Packed sequences (torch.nn.utils.rnn) as one record each way: torch's functions copy each stretch of time steps that
has the same sequences, in several ops, and each time step in the backward pass.

What is packed has a row for each time step of each sequence, and so a shape of its own for each set of lengths. Our ops
know nothing of that: they make as many rows as there would be if all sequences were the longest, of which torch sees
the first ones, and take where these belong as an operand. So one program serves all lengths.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from lazytpu.frontend.inference.infer import override
from lazytpu.frontend.recording.kernels import kernel
from lazytpu.frontend.storage.copies import from_cpu
from lazytpu.frontend.tensors import value_of, wrap
from lazytpu.frontend.torch_private import META, as_strided, by_torch, is_transformed

LIBRARY = torch.library.Library("lazytpu", "FRAGMENT")
LIBRARY.define("pack(Tensor input, Tensor places, int count) -> Tensor")
LIBRARY.define("unpack(Tensor data, Tensor places, Scalar padding, int length) -> Tensor")
LIBRARY.define("convert(Tensor data, ScalarType dtype) -> Tensor")
LIBRARY.define("pack_rows(Tensor input, Tensor places) -> Tensor")
LIBRARY.define("unpack_rows(Tensor rows, Tensor places, Scalar padding, int length) -> Tensor")
OPS: Any = torch.ops.lazytpu
aten: Any = torch.ops.aten

_places: MutableMapping[Tensor, tuple[list[int], Tensor]] = WeakTensorKeyDictionary()
"By the tensor of batch sizes, which torch hands from op to op: its numbers, and the places that they mean."


def places_of(batch_sizes: Tensor, sizes: list[int], steps: int = 0) -> Tensor:
    """Where packed rows belong, i32 [2, T, B] on the device: first for each row its time step times B plus its
    sequence, then for each step of each sequence its row, or -1. `sizes` are the numbers of `batch_sizes`, and T is at
    least their count, and `steps` if that is given and T was not chosen before."""
    known = _places.get(batch_sizes)
    if known is not None and known[0] == sizes:
        return known[1]
    steps, sequences = steps or len(sizes), sizes[0]
    table = np.zeros((2, steps, sequences), np.int32)
    valid = np.arange(sequences) < np.array([*sizes, *[0] * (steps - len(sizes))])[:, None]
    rows = np.flatnonzero(valid)
    table[0].reshape(-1)[: len(rows)] = rows
    table[1] = np.where(valid, np.cumsum(valid).reshape(valid.shape) - 1, -1)
    places = wrap(from_cpu(torch.from_numpy(table)))
    _places[batch_sizes] = sizes, places
    return places


def rows_of(data: Tensor, places: Tensor) -> Tensor:
    """Packed values [N, ·] as the rows [T·B, ·] of which they are the first."""
    count = places.shape[1] * places.shape[2]
    rows = _memory(data)
    if rows is not None and len(rows) == count:
        return rows
    widths = [0, 0] * (data.dim() - 1) + [0, count - len(data)]
    return kernel(aten.constant_pad_nd.default).call(data, widths, 0)


def _memory(data: Tensor) -> Tensor | None:
    """All rows in the memory of what are the first rows; None if it is something else."""
    kind = value_of(data).layout
    if kind.shape[1:] != data.shape[1:] or not kind.contiguous or kind.dtype is not data.dtype:
        return None
    whole = data.stride() == kind.stride and not data.storage_offset()
    return as_strided(META, data, kind.shape, kind.stride, 0) if whole else None


def first_of(rows: Tensor, count: int) -> Tensor:
    """What torch sees of rows."""
    return as_strided(META, rows, (count, *rows.shape[1:]), rows.stride(), 0)


def steps_for(longest: int, length: int) -> int:
    """For how many time steps to pack sequences of an input of this length: a power of two, or the length if that is
    less. A program for each longest sequence is what this avoids; at most half of the steps are in vain."""
    return min(length, 1 << (longest - 1).bit_length())


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
    sizes = [sum(end > t for end in ends) for t in range(ends[0])]
    batch_sizes = torch.tensor(sizes)
    places = places_of(batch_sizes, sizes, steps_for(ends[0], len(steps)))
    return OPS.pack(steps, places, sum(sizes)), batch_sizes


def pad_packed_sequence(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """aten::_pad_packed_sequence: ([steps, sequences, ·], lengths), the latter on the CPU."""
    sizes = _listed(batch_sizes)
    fits = bool(sizes) and sum(sizes) == len(data) and sizes == sorted(sizes, reverse=True) and sizes[-1] > 0
    if not fits or 0 < total_length < len(sizes) or is_transformed():
        return by_torch(aten._pad_packed_sequence.default, data, batch_sizes, batch_first, padding_value, total_length)
    padded = OPS.unpack(data, places_of(batch_sizes, sizes), padding_value, max(len(sizes), total_length))
    lengths = torch.tensor([sum(size > i for size in sizes) for i in range(sizes[0])])
    return padded.transpose(0, 1) if batch_first else padded, lengths


def pack(input: Tensor, places: Tensor, count: int) -> Tensor:
    """lazytpu::pack: packed values [count, ·] of [T or any number of steps, B, ·]."""
    return first_of(kernel(OPS.pack_rows.default).call(input, places), count)


def unpack(data: Tensor, places: Tensor, padding: float, length: int) -> Tensor:
    """lazytpu::unpack: [length, B, ·] of packed values [N, ·], with `padding` behind the ends of sequences."""
    return kernel(OPS.unpack_rows.default).call(rows_of(data, places), places, padding, length)


def convert(data: Tensor, dtype: torch.dtype) -> Tensor:
    """lazytpu::convert: packed values in another dtype. torch's own op would have a program for each number of them."""
    rows = _memory(data)
    call = kernel(aten._to_copy.default).call
    return call(data, dtype=dtype) if rows is None else first_of(call(rows, dtype=dtype), len(data))


@override("lazytpu.pack_rows.default")
def _pack(input: Tensor, places: Tensor) -> Tensor:
    return input.new_empty((places[0].numel(), *input.shape[2:]))


@override("lazytpu.unpack_rows.default")
def _unpack(rows: Tensor, places: Tensor, length: int, **rest: Any) -> Tensor:
    return rows.new_empty((length, places.shape[2], *rows.shape[1:]))


def _save_pack(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, ctx.places, _ = inputs
    ctx.length = len(input)


def _of_pack(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return OPS.unpack(grad, ctx.places, 0, ctx.length), None, None


def _save_unpack(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    data, ctx.places, *_ = inputs
    ctx.count = len(data)


def _of_unpack(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return OPS.pack(grad, ctx.places, ctx.count), None, None, None


def _save_dtype(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.dtype = inputs[0].dtype


def _of_convert(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return OPS.convert(grad, ctx.dtype), None


torch.library.register_autograd("lazytpu::convert", _of_convert, setup_context=_save_dtype, lib=LIBRARY)
torch.library.register_autograd("lazytpu::pack", _of_pack, setup_context=_save_pack, lib=LIBRARY)
torch.library.register_autograd("lazytpu::unpack", _of_unpack, setup_context=_save_unpack, lib=LIBRARY)

OWN: dict[str, Any] = {"convert": convert, "pack": pack, "unpack": unpack}
"Kernels of ops of ours."
COMPOSITES: dict[str, Any] = {
    "_pack_padded_sequence": pack_padded_sequence,
    "_pad_packed_sequence": pad_packed_sequence,
}
