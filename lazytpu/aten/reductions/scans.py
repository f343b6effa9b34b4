"""Running sums, products, extremes and log-sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lazytpu.aten.dims import front
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_complex, is_float, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def _running(b: Builder, kind: str, x: SSAValue, dim: int) -> SSAValue:
    """The scan of `x` converted to the result's dtype."""
    x = b.convert(x, b.out[0][0])
    return b.cumulative(kind, x, front(dim, len(shape_of(x)))) if shape_of(x) else x


@rule("aten.cumsum.default")
def cumsum(b: Builder, self: SSAValue, dim: int, dtype: torch.dtype | None = None) -> SSAValue:
    """Running sums along `dim`; integers in i64."""
    return _running(b, "add", self, dim)


@rule("aten.cumprod.default")
def cumprod(b: Builder, self: SSAValue, dim: int, dtype: torch.dtype | None = None) -> SSAValue:
    """Running products along `dim`; integers in i64."""
    return _running(b, "mul", self, dim)


def _extreme(b: Builder, kind: str, x: SSAValue, dim: int) -> tuple[SSAValue, SSAValue]:
    """(running extremes, their i64 indices). Of equal elements the last counts; once there is a NaN, the last NaN."""
    shape = shape_of(x)
    if not shape or 0 in shape:
        return x, b.constant(0, "i64", shape)
    dim = front(dim, len(shape))
    values = b.cumulative(kind, x, dim)
    hit = b.compare("EQ", x, values)
    if is_float(dtype_of(x)):
        hit = b.or_(hit, b.compare("NE", x, x))
    index = b.iota("i64", shape, dim)
    return values, b.cumulative("max", b.select(hit, index, full(b, 0, index)), dim)


@rule("aten.cummax.default")
def cummax(b: Builder, self: SSAValue, dim: int) -> tuple[SSAValue, SSAValue]:
    return _extreme(b, "max", self, dim)


@rule("aten.cummin.default")
def cummin(b: Builder, self: SSAValue, dim: int) -> tuple[SSAValue, SSAValue]:
    return _extreme(b, "min", self, dim)


@rule("aten._cummax_helper.default")
def cummax_helper(
    b: Builder, self: SSAValue, values: SSAValue, indices: SSAValue, dim: int
) -> tuple[SSAValue, SSAValue]:
    """New `values` and `indices`."""
    return _extreme(b, "max", self, dim)


@rule("aten._cummin_helper.default")
def cummin_helper(
    b: Builder, self: SSAValue, values: SSAValue, indices: SSAValue, dim: int
) -> tuple[SSAValue, SSAValue]:
    """New `values` and `indices`."""
    return _extreme(b, "min", self, dim)


@rule("aten.logcumsumexp.default", "aten._logcumsumexp.default")
def logcumsumexp(b: Builder, self: SSAValue, dim: int) -> SSAValue:
    """log of the running sums of e^x along `dim`."""
    dtype, shape = dtype_of(self), shape_of(self)
    if not shape or 0 in shape:
        return self
    compute = wide(dtype)
    name = "complex_logcumsumexp" if is_complex(dtype) else "cumulative_logsumexp"
    result = b.template(name, [b.convert(self, compute)], [(compute, shape)], dim=front(dim, len(shape)))
    return b.convert(result[0], dtype)
