"""Reductions, windowed reductions and scans. The initial value is always the identity of the kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import AnyTensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from lazytpu.ir.base import (
    INT,
    INTS,
    SIZE_LIST,
    TENSOR,
    WORD,
    TensorOp,
    check_dim,
    check_dims,
    check_dtype,
    check_length,
    integer,
    one_of,
)
from lazytpu.ir.types import BOOL, COMPLEX, FLOATS, INTEGERS, UNSIGNED, dtype_of, extremes, ints, shape_of, tensor_type

KINDS: dict[str, frozenset[str]] = {
    "add": INTEGERS | FLOATS | COMPLEX,
    "mul": INTEGERS | FLOATS | COMPLEX,
    "max": INTEGERS | FLOATS | BOOL,
    "min": INTEGERS | FLOATS | BOOL,
    "and": INTEGERS | BOOL,
    "or": INTEGERS | BOOL,
    "peak": FLOATS,
    "total": FLOATS | COMPLEX,
}
"""The kinds of reduction, with the dtypes that each is defined for. `peak` is a max that is unspecified if an element
is NaN, for uses whose result is NaN then in any case: exp(x - peak) of a softmax. It takes a third of the time on
XLA:CPU. `total` is an add that is accumulated in f64, with the squares that it adds, except on TPUs, which emulate
f64."""
ORDERED = ("max", "min")
SCANS = ("add", "mul", "max", "min")


def identity(kind: str, dtype: str) -> Any:
    """Return the number that a reduction of this kind starts from, which changes no element."""
    if kind in ("max", "min", "peak"):
        return extremes(dtype)[kind == "min"]
    if kind == "and":
        return extremes(dtype)[1] if dtype == "i1" or dtype in UNSIGNED else -1
    return kind == "mul" if dtype == "i1" else int(kind == "mul")


@irdl_op_definition
class ReduceOp(TensorOp):
    """Reduces over `dims`, which are removed. max and min of no elements are -inf and inf (for integers, the extreme
    numbers of the dtype); any NaN makes max and min NaN. `peak` is max where no element is NaN, and any number or NaN
    otherwise; `total` is add, accumulated in f64 where that is native."""

    name = "lazytpu.reduce"
    HEAD: ClassVar = "kind"
    operand = operand_def(TENSOR)
    kind = prop_def(WORD)
    dims = prop_def(INTS)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (reduce_type(one_of(self.kind, KINDS, "kind"), self.operand_type(0), ints(self.dims)),)


@irdl_op_definition
class ArgreduceOp(TensorOp):
    """The extreme values along `dim` and their indices (i64). NaN wins over all numbers; of equals, the first wins."""

    name = "lazytpu.argreduce"
    HEAD: ClassVar = "kind"
    operand = operand_def(TENSOR)
    kind = prop_def(WORD)
    dim = prop_def(INT)
    values = result_def(TENSOR)
    indices = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return argreduce_types(one_of(self.kind, ORDERED, "kind"), self.operand_type(0), integer(self.dim))


@irdl_op_definition
class ReduceWindowOp(TensorOp):
    """Reduces a sliding window over all dimensions, as StableHLO's reduce_window; the padding is the identity."""

    name = "lazytpu.reduce_window"
    HEAD: ClassVar = "kind"
    operand = operand_def(TENSOR)
    kind = prop_def(WORD)
    window = prop_def(SIZE_LIST)
    strides = prop_def(INTS)
    low = prop_def(INTS)
    high = prop_def(SIZE_LIST)
    base_dilations = prop_def(INTS)
    window_dilations = prop_def(INTS)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (
            reduce_window_type(
                one_of(self.kind, KINDS, "kind"),
                self.operand_type(0),
                ints(self.window),
                ints(self.strides),
                ints(self.low),
                ints(self.high),
                ints(self.base_dilations),
                ints(self.window_dilations),
            ),
        )


@irdl_op_definition
class CumulativeOp(TensorOp):
    """Inclusive scan along `dim`: element i reduces elements 0..i."""

    name = "lazytpu.cumulative"
    HEAD: ClassVar = "kind"
    operand = operand_def(TENSOR)
    kind = prop_def(WORD)
    dim = prop_def(INT)
    result = result_def(TENSOR)

    def infer(self) -> Sequence[AnyTensorType]:
        return (cumulative_type(one_of(self.kind, SCANS, "kind"), self.operand_type(0), integer(self.dim)),)


def _check_kind(kind: str, operand: AnyTensorType, allowed: Sequence[str]) -> None:
    if kind not in allowed:
        raise ValueError(f"kind must be one of {', '.join(allowed)}; got {kind!r}")
    check_dtype(dtype_of(operand), KINDS[kind], f"an operand of a reduction by {kind}")


def reduce_type(kind: str, operand: AnyTensorType, dims: Sequence[int]) -> AnyTensorType:
    _check_kind(kind, operand, tuple(KINDS))
    shape = shape_of(operand)
    check_dims(dims, len(shape))
    return tensor_type(dtype_of(operand), [size for dim, size in enumerate(shape) if dim not in dims])


def argreduce_types(kind: str, operand: AnyTensorType, dim: int) -> tuple[AnyTensorType, AnyTensorType]:
    _check_kind(kind, operand, ORDERED)
    shape = shape_of(operand)
    check_dim(dim, len(shape))
    if shape[dim] == 0:
        raise ValueError(f"dimension {dim} of {operand} is empty: it has no {kind}")
    reduced = shape[:dim] + shape[dim + 1 :]
    return tensor_type(dtype_of(operand), reduced), tensor_type("i64", reduced)


def reduce_window_type(
    kind: str,
    operand: AnyTensorType,
    window: Sequence[int],
    strides: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    base_dilations: Sequence[int],
    window_dilations: Sequence[int],
) -> AnyTensorType:
    _check_kind(kind, operand, tuple(KINDS))
    shape = windowed_shape(shape_of(operand), window, strides, low, high, base_dilations, window_dilations)
    return tensor_type(dtype_of(operand), shape)


def windowed_shape(
    shape: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    base_dilations: Sequence[int],
    window_dilations: Sequence[int],
) -> list[int]:
    """The number of window positions in each dimension, after dilating and padding the base; also for convolution."""
    rank = len(shape)
    named = {"window": window, "strides": strides, "low": low, "high": high}
    named |= {"base dilations": base_dilations, "window dilations": window_dilations}
    for name, values in named.items():
        check_length(values, rank, name)
        if name not in ("low", "high") and any(value < 1 for value in values):
            raise ValueError(f"{name} is {list(values)}; expected numbers >= 1")
    positions: list[int] = []
    for dim in range(rank):
        base = (shape[dim] - 1) * base_dilations[dim] + 1 if shape[dim] else 0
        padded = base + low[dim] + high[dim]
        if padded < 0:
            raise ValueError(
                f"padding ({low[dim]}, {high[dim]}) removes more than all of dimension {dim} of size {base}"
            )
        span = (window[dim] - 1) * window_dilations[dim] + 1
        positions.append((padded - span) // strides[dim] + 1 if padded >= span else 0)
    return positions


def cumulative_type(kind: str, operand: AnyTensorType, dim: int) -> AnyTensorType:
    _check_kind(kind, operand, SCANS)
    check_dim(dim, len(shape_of(operand)))
    return operand
