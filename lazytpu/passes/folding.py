"""Folding rules of `constant-folding`: op class -> function of the op and its operands as numpy arrays.

The arrays have the op's own dtypes (bf16 from ml_dtypes), and every rule rounds as IEEE 754 requires: f16 and bf16
operations are computed in f32 and rounded once, which is the correctly rounded result for +, -, *, / and sqrt because
f32 has more than twice their precision. A rule returns None where the dialect leaves the result undefined (integer
division by 0, shifts beyond the width, floats outside an integer's range) or where it would round twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lazytpu.ir import binary, pointwise, shape, unary
from lazytpu.ir.base import TensorOp
from lazytpu.ir.types import bitwidth, dtype_of, ints, is_complex, is_float, is_integer, numpy_dtype, shape_of

Array: TypeAlias = NDArray[Any]
Rule: TypeAlias = Callable[..., Array | None]


def _always(function: Callable[..., Any]) -> Rule:
    """A rule that applies a numpy function to the operands."""

    def rule(op: TensorOp, *operands: Array) -> Array:
        return function(*operands)

    return rule


def _unless_complex(function: Callable[..., Any]) -> Rule:
    """A rule that applies a numpy function to real operands; implementations round complex arithmetic differently."""

    def rule(op: TensorOp, *operands: Array) -> Array | None:
        return None if is_complex(dtype_of(op.operands[0])) else function(*operands)

    return rule


def _divide(op: TensorOp, x: Array, y: Array) -> Array | None:
    dtype = dtype_of(op.operands[0])
    if is_float(dtype):
        return x / y
    if not is_integer(dtype) or _undefined_quotient(x, y):
        return None
    # y divides x - fmod(x, y) evenly, so floor division truncates toward zero.
    return (x - np.fmod(x, y)) // y


def _remainder(op: TensorOp, x: Array, y: Array) -> Array | None:
    if is_integer(dtype_of(op.operands[0])) and _undefined_quotient(x, y):
        return None
    return np.fmod(x, y)


def _undefined_quotient(x: Array, y: Array) -> bool:
    overflows = x.dtype.kind == "i" and bool(np.any((x == np.iinfo(x.dtype).min) & (y == -1)))
    return overflows or bool(np.any(y == 0))


def _maximum(op: TensorOp, x: Array, y: Array) -> Array:
    return np.where((y > x) | (y != y), y, x)


def _minimum(op: TensorOp, x: Array, y: Array) -> Array:
    return np.where((y < x) | (y != y), y, x)


def _sign(op: TensorOp, x: Array) -> Array | None:
    return None if is_complex(dtype_of(op.operands[0])) else np.where(x == 0, x, np.sign(x))


def _negative(op: TensorOp, x: Array) -> Array:
    return -x


def _invert(op: TensorOp, x: Array) -> Array:
    return ~x


def _shift(function: Callable[..., Any]) -> Rule:
    def rule(op: TensorOp, x: Array, y: Array) -> Array | None:
        if bool(np.any((y < 0) | (y >= bitwidth(dtype_of(op.operands[0]))))):
            return None
        return function(x, y)

    return rule


def _shift_logical(x: Array, y: Array) -> Array:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return (x.view(unsigned) >> y.view(unsigned)).view(x.dtype)


def _shift_arithmetic(x: Array, y: Array) -> Array:
    signed = np.dtype(f"i{x.dtype.itemsize}")
    return (x.view(signed) >> y.view(signed)).view(x.dtype)


COMPARE: dict[str, Callable[..., Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def _compare(op: pointwise.CompareOp, x: Array, y: Array) -> Array:
    return COMPARE[op.direction.data](x, y)


def _select(op: TensorOp, pred: Array, on_true: Array, on_false: Array) -> Array:
    return np.where(pred, on_true, on_false)


def _clamp(op: TensorOp, low: Array, x: Array, high: Array) -> Array:
    return _minimum(op, _maximum(op, x, low), high)


def _complex(op: TensorOp, x: Array, y: Array) -> Array:
    result = np.empty(np.broadcast(x, y).shape, numpy_dtype(dtype_of(op.results[0])))
    result.real, result.imag = x, y
    return result


def _bitcast(op: TensorOp, x: Array) -> Array | None:
    source, target = dtype_of(op.operands[0]), dtype_of(op.results[0])
    return x.view(numpy_dtype(target)) if bitwidth(source) == bitwidth(target) else None


def _convert(op: TensorOp, x: Array) -> Array | None:
    source, target = dtype_of(op.operands[0]), dtype_of(op.results[0])
    kind = numpy_dtype(target)
    if target == "i1":
        return x != 0
    if is_complex(source) and not is_complex(target):
        x, source = np.real(x), "f32" if source == "c64" else "f64"
    if is_float(source) and is_integer(target):
        # f64 represents the bounds of every integer dtype exactly, except 2^63 - 1 and 2^64 - 1, hence < of max + 1.
        info, wide = np.iinfo(kind), np.trunc(x.astype(np.float64))
        fits = np.isfinite(wide) & (wide >= float(info.min)) & (wide < float(info.max) + 1.0)
        return wide.astype(kind) if bool(np.all(fits)) else None
    if target in ("f16", "bf16") and source not in ("f16", "bf16", "f32", "i1"):
        # Through f32 only where that step is exact: rounding twice may differ from rounding once.
        middle = x.astype(np.float32)
        exact = np.array_equal(middle.astype(x.dtype), x, equal_nan=is_float(source))
        return middle.astype(kind) if exact and np.all(np.isfinite(middle)) else None
    return x.astype(kind)


ELEMENTWISE: dict[type[TensorOp], Rule] = {
    unary.AbsOp: _unless_complex(np.abs),
    unary.NegOp: _negative,
    unary.SignOp: _sign,
    unary.CeilOp: _always(np.ceil),
    unary.FloorOp: _always(np.floor),
    unary.RoundNearestEvenOp: _always(np.rint),
    unary.SqrtOp: _unless_complex(np.sqrt),
    unary.NotOp: _invert,
    unary.IsFiniteOp: _always(np.isfinite),
    unary.RealOp: _always(np.real),
    unary.ImagOp: _always(np.imag),
    binary.AddOp: _always(np.add),
    binary.SubOp: _always(np.subtract),
    binary.MulOp: _unless_complex(np.multiply),
    binary.DivOp: _divide,
    binary.RemOp: _remainder,
    binary.MaxOp: _maximum,
    binary.MinOp: _minimum,
    binary.AndOp: _always(np.bitwise_and),
    binary.OrOp: _always(np.bitwise_or),
    binary.XorOp: _always(np.bitwise_xor),
    binary.ShiftLeftOp: _shift(np.left_shift),
    binary.ShiftRightLogicalOp: _shift(_shift_logical),
    binary.ShiftRightArithmeticOp: _shift(_shift_arithmetic),
    binary.ComplexOp: _complex,
    pointwise.CompareOp: _compare,
    pointwise.SelectOp: _select,
    pointwise.ClampOp: _clamp,
    pointwise.ConvertOp: _convert,
    pointwise.BitcastConvertOp: _bitcast,
}
"Ops that compute each element of the result from the operands' elements at the same index."


def _broadcast(op: shape.BroadcastInDimOp, x: Array) -> Array:
    target = shape_of(op.results[0])
    aligned = [1] * len(target)
    for dim, size in zip(ints(op.dims), x.shape, strict=True):
        aligned[dim] = size
    order = np.argsort(ints(op.dims), kind="stable")
    return np.broadcast_to(x.transpose(order).reshape(aligned), target)


def _reshape(op: TensorOp, x: Array) -> Array:
    return x.reshape(shape_of(op.results[0]))


def _transpose(op: shape.TransposeOp, x: Array) -> Array:
    return x.transpose(ints(op.permutation))


def _slice(op: shape.SliceOp, x: Array) -> Array:
    spans = zip(ints(op.starts), ints(op.limits), ints(op.strides), strict=True)
    return x[tuple(slice(*span) for span in spans)]


def _pad(op: shape.PadOp, x: Array, value: Array) -> Array | None:
    low = ints(op.low)
    if any(ints(op.interior)) or any(n < 0 for n in (*low, *ints(op.high))):
        return None
    padded = np.full(shape_of(op.results[0]), value, x.dtype)
    padded[tuple(slice(before, before + size) for before, size in zip(low, x.shape, strict=True))] = x
    return padded


def _concatenate(op: shape.ConcatenateOp, *parts: Array) -> Array:
    return np.concatenate(parts, op.dim.value.data)


def _reverse(op: shape.ReverseOp, x: Array) -> Array:
    return np.flip(x, ints(op.dims))


MOVES: dict[type[TensorOp], Rule] = {
    shape.BroadcastInDimOp: _broadcast,
    shape.ReshapeOp: _reshape,
    shape.TransposeOp: _transpose,
    shape.SliceOp: _slice,
    shape.PadOp: _pad,
    shape.ConcatenateOp: _concatenate,
    shape.ReverseOp: _reverse,
}
"Ops that only move elements."

EXACT: frozenset[type[TensorOp]] = frozenset(
    (
        *MOVES,
        *(unary.AbsOp, unary.NegOp, unary.RealOp, unary.ImagOp, binary.ComplexOp, binary.MaxOp, binary.MinOp),
        *(pointwise.SelectOp, pointwise.ClampOp, pointwise.BitcastConvertOp),
    )
)
"""Ops that define all bits of a NaN. The NaN of any other op differs between processors: 0 / 0 has a sign on x86, and
none on ARM."""
