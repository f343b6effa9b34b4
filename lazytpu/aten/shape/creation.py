"""Ops that create tensors from numbers and shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from lazytpu.aten.pointwise.operands import full as filled
from lazytpu.aten.pointwise.operands import number, wide, with_number
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.aten.shape.casts import cast
from lazytpu.aten.shape.masks import flat_positions
from lazytpu.ir.symbolic import Size
from lazytpu.ir.types import is_float, is_integer

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

# Index tables of up to this many elements are constants of the program; larger ones are computed.
TABLE = 1 << 14


@rule(
    *("aten.full.default", "aten.new_full.default", "aten.full_like.default"),
    *("prims.full.default", "prims.full_like.default"),
    numbers=("fill_value",),
)
def full(b: Builder, fill_value: Scalar, **options: Any) -> SSAValue:
    dtype, shape = b.out[0]
    return b.broadcast_to(number(b, fill_value, dtype), shape)


@rule("aten.scalar_tensor.default", "prims.scalar_tensor.default", specialized=("s",))
def scalar_tensor(b: Builder, s: Scalar, **options: Any) -> SSAValue:
    return number(b, s, b.out[0][0])


def _splat(value: int) -> Callable[..., SSAValue]:
    def splat(b: Builder, **options: Any) -> SSAValue:
        dtype, shape = b.out[0]
        return b.constant(value, dtype, shape)

    return splat


rule("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", "aten._efficientzerotensor.default")(
    _splat(0)
)
rule("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")(_splat(1))
# Uninitialised memory is 0, so that a run does not depend on previous contents.
rule(
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.empty_permuted.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
    "prims.empty.default",
    "prims.empty_strided.default",
    "prims.empty_permuted.default",
)(_splat(0))


@rule("aten.zero.default")
def zero(b: Builder, self: SSAValue) -> SSAValue:
    return filled(b, 0, self)


def _steps(b: Builder, start: Scalar | int, step: Scalar | int) -> SSAValue:
    """start + i step. As on the CPU, integers are computed in i64 and floats in f64 (f16 and bf16 in f32), and rounded
    once to the result's dtype (`arange_kernel`). f32 suffices where all numbers are whole and below 2^24."""
    dtype, shape = b.out[0]
    if any(isinstance(n, Scalar) and n.plan is not None for n in (start, step)):
        return _varying_steps(b, start, step)
    first = start.value if isinstance(start, Scalar) else start
    increment = step.value if isinstance(step, Scalar) else step
    if not is_float(dtype):
        first, increment, compute = _truncated(first), _truncated(increment), "i64"
    else:
        last = max(abs(first), abs(first + increment * max(shape[0] - 1, 0)))
        exact = dtype == "f32" and _is_whole(first) and _is_whole(increment) and last < 1 << 24
        compute = "f32" if exact or wide(dtype) != dtype else "f64"
    index = b.iota(compute, shape, 0)
    if increment != 1:
        index = b.mul(index, filled(b, increment, index))
    if first != 0:
        index = b.add(index, filled(b, first, index))
    return b.convert(index, dtype)


def _truncated(number: Any) -> Any:
    return number if isinstance(number, Size) else int(number)


def _is_whole(number: Any) -> bool:
    return isinstance(number, Size) or float(number).is_integer()


def _varying_steps(b: Builder, start: Scalar | int, step: Scalar | int) -> SSAValue:
    """`_steps` with run-time numbers. These are ints: the frontend promotes no others."""
    dtype, shape = b.out[0]
    compute = "i64" if not is_float(dtype) else "f32" if wide(dtype) != dtype else "f64"
    index = b.iota(compute, shape, 0)
    index = b.add(b.mul(index, filled(b, step, index)), filled(b, start, index))
    return b.convert(index, dtype)


@rule("aten.arange.default")
def arange(b: Builder, end: Scalar, **options: Any) -> SSAValue:
    return _steps(b, 0, 1)


@rule("aten.arange.start", specialized=("start", "end"))
def arange_from(b: Builder, start: Scalar, end: Scalar, **options: Any) -> SSAValue:
    return _steps(b, start, 1)


@rule("aten.arange.start_step", specialized=("start", "end", "step"))
@rule("aten.range.step", "aten.range.default")
def arange_step(b: Builder, start: Scalar, end: Scalar, step: Scalar | int = 1, **options: Any) -> SSAValue:
    """start, start + step, … up to `end`, which `arange` excludes and `range` may include."""
    return _steps(b, start, step)


def _number(b: Builder, value: Scalar | SSAValue, dtype: str) -> SSAValue:
    """A number, or a tensor of one element, as a 0-d value."""
    return number(b, value, dtype) if isinstance(value, Scalar) else b.reshape(b.convert(value, dtype), ())


def _evenly(b: Builder, start: Scalar | SSAValue, end: Scalar | SSAValue, steps: int, dtype: str) -> SSAValue:
    """`steps` numbers from start to end in `dtype`, the second half counted back from the end (`linspace_kernel`). For
    an integer result, start and end have already been rounded."""
    low, high = _number(b, start, dtype), _number(b, end, dtype)
    if steps < 2:
        return b.broadcast_to(low, (steps,))
    step = b.broadcast_to(b.div(b.sub(high, low), b.constant(steps - 1, dtype)), (steps,))
    position = b.iota("i64", (steps,), 0)
    remaining = b.sub(filled(b, steps - 1, position), position)
    forward = b.add(b.broadcast_to(low, (steps,)), b.mul(step, b.convert(position, dtype)))
    backward = b.sub(b.broadcast_to(high, (steps,)), b.mul(step, b.convert(remaining, dtype)))
    return b.select(b.compare("LT", position, filled(b, steps // 2, position)), forward, backward)


def _between(b: Builder, value: Scalar | SSAValue, dtype: str) -> Scalar | SSAValue:
    """`value`, rounded toward 0 first if the result is of integers, as on the CPU."""
    return b.convert(_number(b, value, dtype), "f64") if is_integer(dtype) else value


def _computed(dtype: str) -> str:
    """The dtype in which evenly spaced numbers are computed."""
    return "f64" if is_integer(dtype) or dtype == "i1" else wide(dtype)


_LINSPACE = ("default", "Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")


@rule(*(f"aten.linspace.{overload}" for overload in _LINSPACE), numbers=("start", "end"))
def linspace(b: Builder, start: Scalar | SSAValue, end: Scalar | SSAValue, steps: int, **options: Any) -> SSAValue:
    """`steps` evenly spaced numbers from start to end. Integers are computed in f64, halves in f32."""
    dtype, _ = b.out[0]
    compute = _computed(dtype)
    return cast(b, _evenly(b, _between(b, start, dtype), _between(b, end, dtype), steps, compute), dtype)


@rule(*(f"aten.logspace.{overload}" for overload in _LINSPACE), numbers=("start", "end"))
def logspace(
    b: Builder, start: Scalar | SSAValue, end: Scalar | SSAValue, steps: int, base: float = 10.0, **options: Any
) -> SSAValue:
    """base to the power of evenly spaced numbers, computed as in `linspace`."""
    dtype, shape = b.out[0]
    compute = _computed(dtype)
    exponents = _evenly(b, _between(b, start, dtype), _between(b, end, dtype), steps, compute)
    root = base.value if isinstance(base, Scalar) else base
    return cast(b, b.binary("pow", b.constant(root, compute, shape), exponents), dtype)


@rule("aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta")
def kaiser_window(
    b: Builder, window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any
) -> SSAValue:
    """I0(beta sqrt(1 - x^2)) / I0(beta) for x from -1 to 1, which it reaches at the last element or, if periodic, one
    past it (`kaiser_window_kernel`)."""
    dtype, shape = b.out[0]
    if window_length < 2:
        return b.constant(1, dtype, shape)
    compute = wide(dtype)
    x = with_number(b, "mul", b.iota(compute, shape, 0), 2 / (window_length if periodic else window_length - 1))
    x = with_number(b, "sub", x, 1)
    below = b.max(filled(b, 0, x), b.sub(filled(b, 1, x), b.mul(x, x)))
    curve = b.template("bessel_i0", [with_number(b, "mul", b.sqrt(below), beta)], [(compute, shape)])[0]
    return b.convert(with_number(b, "mul", curve, 1 / float(np.i0(beta))), dtype)


@rule("aten.eye.default", "aten.eye.m")
def eye(b: Builder, n: int, m: int | None = None, **options: Any) -> SSAValue:
    """1 on the diagonal, 0 off it."""
    dtype, shape = b.out[0]
    return b.convert(b.compare("EQ", b.iota("i32", shape, 0), b.iota("i32", shape, 1)), dtype)


def _triangle(b: Builder, row: int, col: int, offset: int, direction: str) -> SSAValue:
    """[2, count]: row-major positions on and below (LE) or above (GE) a diagonal of a row x col matrix."""
    dtype, (_, count) = b.out[0]
    if count <= TABLE:
        inside = np.tri(row, col, offset) if direction == "LE" else 1 - np.tri(row, col, offset - 1)
        return b.array(np.stack(np.nonzero(inside)), dtype)
    rows, columns = b.iota("i32", (row, col), 0), b.iota("i32", (row, col), 1)
    mask = b.compare(direction, b.sub(columns, rows), b.constant(offset, "i32", (row, col)))
    position = flat_positions(b, mask, count)
    width = filled(b, col, position)
    pair = [b.reshape(b.binary(op, position, width), (1, count)) for op in ("div", "rem")]
    return b.convert(b.concatenate(pair, 0), dtype)


@rule("aten.tril_indices.default")
def tril_indices(b: Builder, row: int, col: int, offset: int = 0, **options: Any) -> SSAValue:
    """[2, count]: rows and columns of the lower triangle, row by row."""
    return _triangle(b, row, col, offset, "LE")


@rule("aten.triu_indices.default")
def triu_indices(b: Builder, row: int, col: int, offset: int = 0, **options: Any) -> SSAValue:
    """[2, count]: rows and columns of the upper triangle, row by row."""
    return _triangle(b, row, col, offset, "GE")
