"""Ops that make tensors from nothing but numbers: constants, ranges, identities."""

from __future__ import annotations

import math
from typing import Any

from xdsl.ir import SSAValue

from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.builder import Builder
from lazytpu.ir.types import is_float


def _filled(b: Builder, value: Scalar | int) -> SSAValue:
    """A tensor of the expected dtype and shape, everywhere `value`."""
    dtype, shape = b.out[0]
    if isinstance(value, int):
        return b.constant(value, dtype, shape)
    return b.broadcast_to(b.scalar(value, dtype), shape)


@rule(
    "aten.full.default",
    "aten.full_like.default",
    "aten.new_full.default",
    numbers=("fill_value",),
)
def full(b: Builder, *_: Any, fill_value: Scalar, **__: Any) -> SSAValue:
    """`fill_value` everywhere."""
    return _filled(b, fill_value)


@rule("aten.scalar_tensor.default", numbers=("s",))
def scalar_tensor(b: Builder, s: Scalar, **_: Any) -> SSAValue:
    """A number as a 0-d tensor."""
    return _filled(b, s)


@rule(
    "aten.zeros.default",
    "aten.zeros_like.default",
    "aten.new_zeros.default",
    "aten.zero.default",
    "aten.empty_like.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "aten.empty.memory_format",
    "aten.empty_strided.default",
    "aten.empty_permuted.default",
)
def zeros(b: Builder, *_: Any, **__: Any) -> SSAValue:
    """Zeros; uninitialised memory reads as zeros too, so that a program is a function of its inputs."""
    return _filled(b, 0)


@rule("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(b: Builder, *_: Any, **__: Any) -> SSAValue:
    """Ones."""
    return _filled(b, 1)


@rule("aten.arange.start_step", "aten.arange.start", "aten.arange.default")
def arange(b: Builder, end: Scalar, start: Scalar | None = None, step: Scalar | None = None, **_: Any) -> SSAValue:
    """start + step * i, computed as the CPU does: integers in 64 bits, floats in f64 (its accumulation type) and rounded
    once (aten/src/ATen/native/cpu/RangeFactoriesKernel.cpp)."""
    dtype, (count,) = b.out[0]
    first = 0 if start is None else start.value
    stride = 1 if step is None else step.value
    wide = "f64" if is_float(dtype) else "i64"
    place = b.iota(wide, (count,), 0)
    scaled = place if stride == 1 else b.mul(place, b.constant(stride, wide, (count,)))
    return b.convert(scaled if first == 0 else b.add(scaled, b.constant(first, wide, (count,))), dtype)


@rule("aten.linspace.default")
def linspace(b: Builder, start: Scalar, end: Scalar, steps: int, **_: Any) -> SSAValue:
    """From both ends towards the middle, as the CPU does (aten/src/ATen/native/cpu/RangeFactoriesKernel.cpp)."""
    dtype, shape = b.out[0]
    wide = "f64" if dtype != "f32" else "f32"
    if steps == 1:
        return b.constant(start.value, dtype, shape)
    span = (end.value - start.value) / (steps - 1) if steps else 0.0
    place = b.iota("i64", shape, 0)
    last = b.constant(max(steps - 1, 0), "i64", shape)
    width = b.constant(span, wide, shape)
    low = b.add(b.constant(start.value, wide, shape), b.mul(width, b.convert(place, wide)))
    high = b.sub(b.constant(end.value, wide, shape), b.mul(width, b.convert(b.sub(last, place), wide)))
    found = b.select(b.compare("LT", place, b.constant(steps // 2, "i64", shape)), low, high)
    return b.convert(found, dtype)


@rule("aten.logspace.default")
def logspace(b: Builder, start: Scalar, end: Scalar, steps: int, base: float = 10.0, **_: Any) -> SSAValue:
    """base to the power of the points of linspace."""
    dtype, shape = b.out[0]
    span = (end.value - start.value) / (steps - 1) if steps > 1 else 0.0
    place = b.convert(b.iota("i64", shape, 0), "f64")
    exponent = b.add(b.constant(start.value, "f64", shape), b.mul(b.constant(span, "f64", shape), place))
    return b.convert(b.exp(b.mul(exponent, b.constant(math.log(base), "f64", shape))), dtype)


@rule("aten.eye.default", "aten.eye.m")
def eye(b: Builder, n: int, m: int | None = None, **_: Any) -> SSAValue:
    """Ones where row and column agree."""
    dtype, shape = b.out[0]
    return b.convert(b.compare("EQ", b.iota("i64", shape, 0), b.iota("i64", shape, 1)), dtype)


