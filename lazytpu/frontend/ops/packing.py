"""Packed sequences (torch.nn.utils.rnn) as one record in each direction. torch's functions need several ops per run of
time steps with the same sequences, and per time step in the backward pass.

A packed tensor has a row for each time step of each sequence, and so a different shape for each set of lengths. Our ops
are independent of the lengths: they always produce the rows for sequences of maximum length, of which torch sees the
first ones. The positions of the rows are an operand. So one program serves all lengths.
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
"Tensor of batch sizes, which torch passes from op to op -> its numbers, and the positions derived from them."


def places_of(batch_sizes: Tensor, sizes: list[int], steps: int = 0) -> Tensor:
    """Return the positions of packed rows: i32 [2, T, B] on the device.

    The first plane has, for each row, its time step times B plus its sequence. The second has, for each step of each
    sequence, its row, or -1. `sizes` are the numbers of `batch_sizes`. T is at least their count, and at least `steps`
    if that is given and T was not chosen before.
    """
    cached = _places.get(batch_sizes)
    if cached is not None and cached[0] == sizes:
        return cached[1]
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
    """Return the rows [T·B, ·] that begin with the packed values [N, ·]."""
    count = places.shape[1] * places.shape[2]
    rows = _memory(data)
    if rows is not None and len(rows) == count:
        return rows
    widths = [0, 0] * (data.dim() - 1) + [0, count - len(data)]
    return kernel(aten.constant_pad_nd.default).call(data, widths, 0)


def _memory(data: Tensor) -> Tensor | None:
    """Return all rows in the memory behind the first rows; None if the memory has another layout."""
    kind = value_of(data).layout
    if kind.shape[1:] != data.shape[1:] or not kind.contiguous or kind.dtype is not data.dtype:
        return None
    is_prefix = data.stride() == kind.stride and not data.storage_offset()
    return as_strided(META, data, kind.shape, kind.stride, 0) if is_prefix else None


def first_of(rows: Tensor, count: int) -> Tensor:
    """Return the first `count` rows, which torch sees."""
    return as_strided(META, rows, (count, *rows.shape[1:]), rows.stride(), 0)


def steps_for(longest: int, length: int) -> int:
    """Return the number of time steps for which to pack sequences: a power of two, at most the input's length.

    This avoids a program for each longest sequence; at most half of the steps are padding.
    """
    return min(length, 1 << (longest - 1).bit_length())


def _listed(numbers: Tensor) -> list[int]:
    """Return lengths or batch sizes as a list; empty if torch rejects the tensor."""
    usable = numbers.dim() == 1 and numbers.device.type == "cpu" and numbers.dtype is torch.int64
    return numbers.tolist() if usable else []


def pack_padded_sequence(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """The kernel of aten::_pack_padded_sequence: (rows of all steps, batch sizes), the latter on the CPU."""
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
    """The kernel of aten::_pad_packed_sequence: ([steps, sequences, ·], lengths), the latter on the CPU."""
    sizes = _listed(batch_sizes)
    fits = bool(sizes) and sum(sizes) == len(data) and sizes == sorted(sizes, reverse=True) and sizes[-1] > 0
    if not fits or 0 < total_length < len(sizes) or is_transformed():
        return by_torch(aten._pad_packed_sequence.default, data, batch_sizes, batch_first, padding_value, total_length)
    padded = OPS.unpack(data, places_of(batch_sizes, sizes), padding_value, max(len(sizes), total_length))
    lengths = torch.tensor([sum(size > i for size in sizes) for i in range(sizes[0])])
    return padded.transpose(0, 1) if batch_first else padded, lengths


def pack(input: Tensor, places: Tensor, count: int) -> Tensor:
    """The kernel of lazytpu::pack: packed values [count, ·] from [T or any number of steps, B, ·]."""
    return first_of(kernel(OPS.pack_rows.default).call(input, places), count)


def unpack(data: Tensor, places: Tensor, padding: float, length: int) -> Tensor:
    """The kernel of lazytpu::unpack: [length, B, ·] from packed values [N, ·], with `padding` after the ends of
    sequences."""
    return kernel(OPS.unpack_rows.default).call(rows_of(data, places), places, padding, length)


def convert(data: Tensor, dtype: torch.dtype) -> Tensor:
    """The kernel of lazytpu::convert: packed values in another dtype. torch's own op would need a program for each
    number of values."""
    rows = _memory(data)
    call = kernel(aten._to_copy.default).call
    return call(data, dtype=dtype) if rows is None else first_of(call(rows, dtype=dtype), len(data))


@override("lazytpu.pack_rows.default")
def _pack(input: Tensor, places: Tensor) -> Tensor:
    return input.new_empty((places[0].numel(), *input.shape[2:]))


@override("lazytpu.unpack_rows.default")
def _unpack(rows: Tensor, places: Tensor, length: int, **unused: Any) -> Tensor:
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
"Kernels of lazytpu's own ops."
COMPOSITES: dict[str, Any] = {
    "_pack_padded_sequence": pack_padded_sequence,
    "_pad_packed_sequence": pad_packed_sequence,
}
