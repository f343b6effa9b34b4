"""Discrete Fourier transforms: the three ops behind every function of `torch.fft`."""

from __future__ import annotations

from math import prod, sqrt
from typing import TYPE_CHECKING

from lazytpu.aten.dims import front
from lazytpu.aten.pointwise.operands import with_number
from lazytpu.aten.registry import rule
from lazytpu.ir.types import COMPLEX_OF, REAL_OF, dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

BLOCK = 3  # dimensions that XLA transforms at once


def _order(rank: int, dims: Sequence[int]) -> list[int]:
    """The permutation that brings `dims` to the end."""
    return [*(d for d in range(rank) if d not in dims), *dims]


def _inverse(permutation: Sequence[int]) -> list[int]:
    return [permutation.index(d) for d in range(len(permutation))]


def _call(b: Builder, x: SSAValue, kind: str, lengths: Sequence[int], dtype: str, shape: Sequence[int]) -> SSAValue:
    return b.template("fft", [x], [(dtype, tuple(shape))], kind=kind, lengths=tuple(lengths))[0]


def _complex(b: Builder, x: SSAValue, dims: Sequence[int], kind: str) -> SSAValue:
    """Complex to complex over `dims` without normalization, BLOCK dimensions at a time."""
    shape = shape_of(x)
    for i in range(0, len(dims), BLOCK):
        order = _order(len(shape), dims[i : i + BLOCK])
        moved = b.transpose(x, order)
        lengths = [shape[d] for d in dims[i : i + BLOCK]]
        x = b.transpose(_call(b, moved, kind, lengths, dtype_of(x), shape_of(moved)), _inverse(order))
    return x


def _normalised(b: Builder, x: SSAValue, normalization: int, lengths: Sequence[int]) -> SSAValue:
    """`x` unchanged (0), divided by the square root of the number of elements (1), or by that number (2): torch's
    `fft_norm_mode`."""
    if normalization == 0:
        return x
    count = prod(lengths)
    scale = 1 / (sqrt(count) if normalization == 1 else count)
    if not is_complex(dtype_of(x)):
        return with_number(b, "mul", x, scale)
    real, imag = (with_number(b, "mul", b.unary(part, x), scale) for part in ("real", "imag"))
    return b.binary("complex", real, imag)


@rule("aten._fft_c2c.default")
def fft_c2c(b: Builder, self: SSAValue, dim: list[int], normalization: int, forward: bool) -> SSAValue:
    """Complex to complex over `dim`."""
    shape = shape_of(self)
    dims = [front(d, len(shape)) for d in dim]
    if 0 in shape or not dims:
        return self
    spectrum = _complex(b, self, dims, "fft" if forward else "ifft")
    return _normalised(b, spectrum, normalization, [shape[d] for d in dims])


def _completed(b: Builder, half: SSAValue, dims: Sequence[int], size: int) -> SSAValue:
    """The spectrum of real numbers, with `size` elements along the last of `dims`, from its first half: each other
    element k is the conjugate of element -k, exactly, as on the CPU."""
    start, limits = [0] * len(shape_of(half)), list(shape_of(half))
    start[dims[-1]], limits[dims[-1]] = 1, (size + 1) // 2
    rest = b.reverse(b.slice(half, start, limits), list(dims))
    for d in dims[:-1]:  # reversed, element 0 is the last
        rest = _rolled(b, rest, d)
    return b.concatenate([half, b.binary("complex", b.unary("real", rest), b.neg(b.unary("imag", rest)))], dims[-1])


def _rolled(b: Builder, x: SSAValue, dim: int) -> SSAValue:
    """`x` with its last element along `dim` in front of the others."""
    start, limits = [0] * len(shape_of(x)), list(shape_of(x))
    last, before = start.copy(), limits.copy()
    last[dim] = before[dim] = limits[dim] - 1
    return b.concatenate([b.slice(x, last, limits), b.slice(x, start, before)], dim)


@rule("aten._fft_r2c.default")
def fft_r2c(b: Builder, self: SSAValue, dim: list[int], normalization: int, onesided: bool) -> SSAValue:
    """Real to complex over `dim`; if `onesided`, only the first n // 2 + 1 elements of its last dimension."""
    shape = shape_of(self)
    dims = [front(d, len(shape)) for d in dim]
    dtype, result = COMPLEX_OF[dtype_of(self)], b.out[0][1]
    if 0 in shape:
        return b.constant(0, dtype, result)
    order = _order(len(shape), dims[-1:])
    moved = b.transpose(self, order)
    half = [*shape_of(moved)[:-1], shape[dims[-1]] // 2 + 1]
    spectrum = b.transpose(_call(b, moved, "rfft", [shape[dims[-1]]], dtype, half), _inverse(order))
    spectrum = _complex(b, spectrum, dims[:-1], "fft")
    if not onesided:
        spectrum = _completed(b, spectrum, dims, shape[dims[-1]])
    return _normalised(b, spectrum, normalization, [shape[d] for d in dims])


@rule("aten._fft_c2r.default")
def fft_c2r(b: Builder, self: SSAValue, dim: list[int], normalization: int, last_dim_size: int) -> SSAValue:
    """The inverse of a one-sided transform, with `last_dim_size` elements along the last of `dim`."""
    shape = shape_of(self)
    dims = [front(d, len(shape)) for d in dim]
    dtype, result = REAL_OF[dtype_of(self)], b.out[0][1]
    if 0 in shape:
        return b.constant(0, dtype, result)
    x = _complex(b, self, dims[:-1], "ifft")
    limits = [last_dim_size // 2 + 1 if d == dims[-1] else n for d, n in enumerate(shape)]
    order = _order(len(shape), dims[-1:])
    moved = b.transpose(b.slice(x, [0] * len(shape), limits), order)
    real_shape = [*shape_of(moved)[:-1], last_dim_size]
    x = b.transpose(_call(b, moved, "irfft", [last_dim_size], dtype, real_shape), _inverse(order))
    return _normalised(b, x, normalization, [result[d] for d in dims])
