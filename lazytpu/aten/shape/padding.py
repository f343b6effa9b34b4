"""Padding by a constant, by reflection and by replication, and the backward of the last two.

Pads are pairs (low, high), last dimension first, as in `torch.nn.functional.pad`. Negative ones crop, after the
padding, as in ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import number, wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder

    Edge = Callable[[Builder, SSAValue, int, int, int], SSAValue]


def pairs(pad: list[int], rank: int) -> list[tuple[int, int]]:
    """(low, high) for each dimension, first to last."""
    reversed_pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (rank - len(reversed_pairs)) + reversed_pairs[::-1]


@rule("aten.constant_pad_nd.default", numbers=("value",))
def constant_pad_nd(b: Builder, self: SSAValue, pad: list[int], value: Scalar) -> SSAValue:
    low, high = zip(*pairs(pad, len(shape_of(self))), strict=True) if shape_of(self) else ((), ())
    return b.pad(self, number(b, value, dtype_of(self)), low, high)


def part(b: Builder, x: SSAValue, dim: int, start: int, limit: int) -> SSAValue:
    """x[start:limit] along one dimension."""
    shape = shape_of(x)
    starts = [start if d == dim else 0 for d in range(len(shape))]
    return b.slice(x, starts, [limit if d == dim else n for d, n in enumerate(shape)])


def _placed(b: Builder, x: SSAValue, dim: int, start: int, size: int) -> SSAValue:
    """The adjoint of `part`: x at `start` of a dimension of `size`, zeros elsewhere; anything beyond is cropped."""
    rank, length = len(shape_of(x)), shape_of(x)[dim]
    low = [start if d == dim else 0 for d in range(rank)]
    high = [size - start - length if d == dim else 0 for d in range(rank)]
    return b.pad(x, b.constant(0, dtype_of(x)), low, high)


def _extended(b: Builder, x: SSAValue, pad: list[int], mode: str) -> SSAValue:
    """x padded by its mirror image, without the edge ("reflection"), or by copies of the edge ("replication")."""
    for dim, (low, high) in enumerate(pairs(pad, len(shape_of(x)))):
        size, pieces = shape_of(x)[dim], [x]
        if mode == "reflection":
            if low > 0:
                pieces.insert(0, b.reverse(part(b, x, dim, 1, low + 1), [dim]))
            if high > 0:
                pieces.append(b.reverse(part(b, x, dim, size - 1 - high, size - 1), [dim]))
        else:
            if low > 0:
                pieces.insert(0, _repeated(b, part(b, x, dim, 0, 1), dim, low))
            if high > 0:
                pieces.append(_repeated(b, part(b, x, dim, size - 1, size), dim, high))
        x = b.concatenate(pieces, dim)
        x = part(b, x, dim, max(-low, 0), shape_of(x)[dim] - max(-high, 0))
    return x


def _repeated(b: Builder, x: SSAValue, dim: int, count: int) -> SSAValue:
    shape = [count if d == dim else n for d, n in enumerate(shape_of(x))]
    return b.broadcast_in_dim(x, shape, range(len(shape)))


def _folded(b: Builder, grad: SSAValue, shape: tuple[int, ...], pad: list[int], mode: str) -> SSAValue:
    """The adjoint of `_extended`: an element gets the sum of the gradients of its copies, in f32 for f16 and bf16."""
    dtype = dtype_of(grad)
    x = b.convert(grad, wide(dtype))
    for dim, (low, high) in reversed(list(enumerate(pairs(pad, len(shape))))):
        size = shape[dim]
        padded = max(low, 0) + size + max(high, 0)
        x = _placed(b, x, dim, max(-low, 0), padded)
        total = part(b, x, dim, max(low, 0), max(low, 0) + size)
        if low > 0:
            copies = part(b, x, dim, 0, low)
            if mode == "reflection":
                total = b.add(total, _placed(b, b.reverse(copies, [dim]), dim, 1, size))
            else:
                total = b.add(total, _placed(b, b.reduce("add", copies, [dim], keepdim=True), dim, 0, size))
        if high > 0:
            copies = part(b, x, dim, padded - high, padded)
            if mode == "reflection":
                total = b.add(total, _placed(b, b.reverse(copies, [dim]), dim, size - 1 - high, size))
            else:
                total = b.add(total, _placed(b, b.reduce("add", copies, [dim], keepdim=True), dim, size - 1, size))
        x = total
    return b.convert(x, dtype)


def _overloads(stem: str) -> list[str]:
    return [f"aten.{stem.format(n)}.default" for n in (1, 2, 3)]


@rule(*_overloads("reflection_pad{}d"))
def reflection_pad(b: Builder, self: SSAValue, padding: list[int]) -> SSAValue:
    return _extended(b, self, padding, "reflection")


@rule(*_overloads("replication_pad{}d"))
def replication_pad(b: Builder, self: SSAValue, padding: list[int]) -> SSAValue:
    return _extended(b, self, padding, "replication")


@rule(*_overloads("reflection_pad{}d_backward"))
def reflection_pad_backward(b: Builder, grad_output: SSAValue, self: SSAValue, padding: list[int]) -> SSAValue:
    return _folded(b, grad_output, shape_of(self), padding, "reflection")


@rule(*_overloads("replication_pad{}d_backward"))
def replication_pad_backward(b: Builder, grad_output: SSAValue, self: SSAValue, padding: list[int]) -> SSAValue:
    return _folded(b, grad_output, shape_of(self), padding, "replication")
