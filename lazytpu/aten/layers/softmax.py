"""Softmax, log-softmax and logsumexp. As on the CPU, f16 and bf16 are computed in f32."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from lazytpu.aten.dims import along, reduced
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def row_sum(b: Builder, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    """Sums over `dims`, broadcast to the shape of `x`."""
    return along(b, b.reduce("add", x, dims), shape_of(x), dims)


def shifted(b: Builder, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    """`x` minus its maximum over `dims`, so that exp cannot overflow. A NaN stays after any subtraction, and makes the
    sum of the row NaN, so `peak` is enough."""
    return b.sub(x, along(b, b.reduce("peak", x, dims), shape_of(x), dims))


def softmax_of(b: Builder, x: SSAValue, dims: Sequence[int]) -> SSAValue:
    """exp(x - max) / Σ exp(x - max), in the dtype of `x`."""
    exps = b.exp(shifted(b, x, dims))
    return b.div(exps, row_sum(b, exps, dims))


@rule("aten._softmax.default")
def softmax(b: Builder, self: SSAValue, dim: int, half_to_float: bool) -> SSAValue:
    """Probabilities along `dim`; a row with only -inf is NaN."""
    x = b.convert(self, wide(dtype_of(self)))
    return b.convert(softmax_of(b, x, reduced(dim, len(shape_of(x)))), b.out[0][0])


@rule("aten._safe_softmax.default")
def safe_softmax(b: Builder, self: SSAValue, dim: int, dtype: Any = None) -> SSAValue:
    """Softmax in which a row with only -inf (all masked) gives zeros."""
    to = b.out[0][0]
    x = b.convert(b.convert(self, to), wide(to))
    dims = reduced(dim, len(shape_of(x)))
    masked = b.reduce("and", b.compare("EQ", x, full(b, -inf, x)), dims)
    probabilities = b.convert(softmax_of(b, x, dims), to)
    return b.select(along(b, masked, shape_of(x), dims), full(b, 0, probabilities), probabilities)


@rule("aten._log_softmax.default")
def log_softmax(b: Builder, self: SSAValue, dim: int, half_to_float: bool) -> SSAValue:
    """x - max - log Σ exp(x - max)."""
    x = b.convert(self, wide(dtype_of(self)))
    dims = reduced(dim, len(shape_of(x)))
    centred = shifted(b, x, dims)
    log = b.log(b.reduce("add", b.exp(centred), dims))
    return b.convert(b.sub(centred, along(b, log, shape_of(x), dims)), b.out[0][0])


@rule("aten._softmax_backward_data.default")
def softmax_backward(b: Builder, grad_output: SSAValue, output: SSAValue, dim: int, input_dtype: Any) -> SSAValue:
    """(g - Σ g·y)·y, for y the softmax."""
    dtype, y = wide(dtype_of(output)), b.convert(output, wide(dtype_of(output)))
    g = b.convert(grad_output, dtype)
    dims = reduced(dim, len(shape_of(y)))
    return b.convert(b.mul(b.sub(g, row_sum(b, b.mul(g, y), dims)), y), b.out[0][0])


@rule("aten._log_softmax_backward_data.default")
def log_softmax_backward(b: Builder, grad_output: SSAValue, output: SSAValue, dim: int, input_dtype: Any) -> SSAValue:
    """g - exp(y)·Σ g, for y the log-softmax."""
    dtype, y = wide(dtype_of(output)), b.convert(output, wide(dtype_of(output)))
    g = b.convert(grad_output, dtype)
    dims = reduced(dim, len(shape_of(y)))
    return b.convert(b.sub(g, b.mul(b.exp(y), row_sum(b, g, dims))), b.out[0][0])


@rule("aten.logsumexp.default")
def logsumexp(b: Builder, self: SSAValue, dim: Sequence[int], keepdim: bool = False) -> SSAValue:
    """max + log Σ exp(x - max), with 0 for an infinite max; integers are computed in the default float."""
    to, shape = b.out[0]
    x = b.convert(self, wide(to))
    dims = reduced(dim, len(shape_of(x)))
    ordered = b.unary("real", x) if is_complex(to) else x
    largest = b.reduce("peak", ordered, dims)
    infinite = b.compare("EQ", b.abs(largest), full(b, inf, largest))
    largest = b.select(infinite, full(b, 0, largest), largest)
    if is_complex(to):
        largest = b.binary("complex", largest, full(b, 0, largest))
    exps = b.exp(b.sub(x, along(b, largest, shape_of(x), dims)))
    result = b.add(b.log(b.reduce("add", exps, dims)), largest)
    return b.convert(b.reshape(result, shape), to)
