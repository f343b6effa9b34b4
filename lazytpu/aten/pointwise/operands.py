"""Operands and results of pointwise rules: torch's type promotion, and the dtype in which its CPU kernels compute."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from xdsl.ir import SSAValue

from lazytpu.aten import dtypes
from lazytpu.aten.ambient import default_complex, default_float
from lazytpu.aten.promotion import promote
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.by_release import SATURATES_CLAMP
from lazytpu.ir.types import FLOATS8, dtype_of, is_complex, is_float, shape_of

if TYPE_CHECKING:
    from lazytpu.ir.builder import Builder

Operand = SSAValue | Scalar
HALVES = ("f16", "bf16")
REAL_OF = {"c64": "f32", "c128": "f64"}
COMPLEX_OF = {"f32": "c64", "f64": "c128", "f16": "c64", "bf16": "c64"}


def wide(dtype: str) -> str:
    """The dtype in which most CPU kernels compute (`at::opmath_type`): f32 for narrower floats, else `dtype`."""
    return "f32" if dtype in HALVES or dtype in FLOATS8 else dtype


def computable(b: Builder, x: SSAValue) -> SSAValue:
    """x, converted to f32 if it is of an 8-bit float dtype, which is for storage only."""
    return b.convert(x, "f32") if dtype_of(x) in FLOATS8 else x


_KINDS = ("bool", "int", "float", "complex")  # Python numbers, by ascending category


def _category(dtype: str) -> int:
    """The rank of `dtype` in bool < integer < float < complex."""
    return 3 if is_complex(dtype) else 2 if is_float(dtype) else int(dtype != "i1")


def _combine(higher: str | None, lower: str | None) -> str | None:
    """`at::native::combine_categories`: `higher` wins unless `lower` is of a higher category."""
    if higher is None or lower is None:
        return higher or lower
    if is_float(higher) and is_complex(lower):
        return COMPLEX_OF[higher]
    if is_float(higher) or is_complex(higher):
        return higher
    return _joined(higher, lower) if higher == "i1" or _category(lower) > 1 else higher


def _with_number(dtype: str | None, kind: str) -> str:
    """`_combine` with a Python number, which only counts if its category is higher than the tensors'."""
    category = _KINDS.index(kind)
    if dtype is not None and _category(dtype) >= category:
        return dtype
    if dtype is not None and is_float(dtype):
        return COMPLEX_OF[dtype]
    if category > 1:
        return default_complex() if kind == "complex" else default_float()
    return "i64" if kind == "int" else "i1"


@functools.cache
def _joined(x: str, y: str) -> str:
    return dtypes.name(torch.promote_types(dtypes.torch_dtype(x), dtypes.torch_dtype(y)))


def result_type(*args: Operand | None) -> str:
    """The dtype of a pointwise op's result on `args`: `torch.result_type` for any number of operands.

    Tensors with dims take precedence over 0-d tensors, and those over Python numbers
    (https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc).
    """
    dtypes_by_rank: list[str | None] = [None, None]  # of tensors with dims, of 0-d tensors
    kind: str | None = None  # of Python numbers
    for arg in args:
        if arg is None:
            continue
        if isinstance(arg, Scalar):
            kind = arg.kind if kind is None else max(kind, arg.kind, key=_KINDS.index)
            continue
        scalar, dtype = int(not shape_of(arg)), dtype_of(arg)
        before = dtypes_by_rank[scalar]
        dtypes_by_rank[scalar] = dtype if before is None else _joined(before, dtype)
    result = _combine(*dtypes_by_rank)
    if kind is not None:
        result = _with_number(result, kind)
    if result is None:
        raise ValueError("type promotion needs at least one operand")
    return result


def float_type(*args: Operand | None) -> str:
    """`result_type`, with bools and integers promoted to the default float (`exp` of an int tensor is float32)."""
    common = result_type(*args)
    return common if _category(common) > 1 else default_float()


def operands(
    b: Builder, *args: Operand, common: str, halves: Literal["wide", "own"] = "wide", rounded: bool = True
) -> tuple[SSAValue, ...]:
    """`args` in the dtype in which the op computes, broadcast to one shape.

    `common` is the promoted dtype. `halves="wide"` computes f16 and bf16 in f32, as most CPU kernels do; "own" does
    not. `rounded` says whether an operand of another dtype is first rounded to `common`. CPU kernels that read a 0-d
    operand in f32 (`iter.original_scalar_value<opmath_t>`), such as mul and div, do not round it.
    """
    target = wide(common) if halves == "wide" or common in FLOATS8 else common
    values = [_through(b, a, common if rounded else target, target) for a in args]
    return promote(b, *values, to=target)


def _through(b: Builder, value: Operand, common: str, target: str) -> SSAValue:
    """`value` in `target`, rounded to `common` first."""
    if not isinstance(value, Scalar):
        return b.convert(b.convert(value, common), target)
    if common != target and isinstance(value.value, int | float):  # a known number with a tensor of f16 or bf16
        return b.constant(torch.tensor(value.value, dtype=dtypes.torch_dtype(common)).item(), target)
    return b.convert(number(b, value, common), target)


def number(b: Builder, value: Scalar, dtype: str) -> SSAValue:
    """A number as a 0-d value of `dtype`; integer dtypes drop the fraction and wrap around."""
    return b.scalar(value, dtype)


def within_dtype(b: Builder, bound: Operand, common: str) -> Operand:
    """A bound of `clamp`, brought into the range of the dtype in which it computes where torch does that."""
    if not (SATURATES_CLAMP and isinstance(bound, Scalar) and bound.kind == "int") or is_float(common):
        return bound
    info = torch.iinfo(dtypes.torch_dtype(common))
    low, high = (b.constant(end, "i64") for end in (info.min, min(info.max, torch.iinfo(torch.int64).max)))
    return b.convert(b.min(b.max(number(b, bound, "i64"), low), high), common)


def finish(b: Builder, value: SSAValue, common: str | None = None) -> SSAValue:
    """`value` in the dtype that torch gives the op's (first) result, broadcast to its shape.

    If `common`, the promoted dtype, is f16 or bf16, the result is rounded to it before it goes to an `out=` tensor of
    another dtype.
    """
    dtype, shape = b.out[0]
    if common in HALVES and dtype != common and dtype != "i1" and dtype_of(value) == "f32":
        value = b.convert(value, common)
    return b.broadcast_to(b.convert(value, dtype), shape)


def full(b: Builder, value: bool | int | float | complex | Scalar, like: SSAValue) -> SSAValue:
    """A number in the shape and dtype of `like`."""
    if isinstance(value, Scalar) and value.plan is not None:
        return b.broadcast_to(b.scalar(value, dtype_of(like)), shape_of(like))
    number = value.value if isinstance(value, Scalar) else value
    return b.constant(number, dtype_of(like), shape_of(like))


def with_number(b: Builder, op: str, x: SSAValue, value: float) -> SSAValue:
    """x `op` a constant of its dtype."""
    return b.binary(op, x, full(b, value, x))


def pointwise(
    *names: str,
    floating: bool = False,
    halves: Literal["wide", "own"] = "wide",
    rounded: bool = True,
    options: Sequence[str] = (),
) -> Callable[[Callable[..., SSAValue]], Callable[..., SSAValue]]:
    """Register a rule whose tensors are promoted together and passed in the dtype in which the op computes.

    Parameters have their names in the schema. Positional ones are the tensors (or wrapped numbers) that determine the
    dtype; keyword-only ones are numbers converted to it. All may be run-time numbers (R3), except the keyword-only
    `options`, which are passed unchanged (a bool, a string). None stays None. The returned value is converted to the
    result's dtype.

    `floating` promotes integers to the default float; for `halves` and `rounded` see `operands`. The decorated function
    is returned unchanged, so that other rules can call it.
    """

    def register(function: Callable[..., SSAValue]) -> Callable[..., SSAValue]:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        deciding = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        every = [p.name for p in parameters if p.name not in options]

        @functools.wraps(function)
        def meaning(b: Builder, **arguments: Any) -> SSAValue:
            common = (float_type if floating else result_type)(*(arguments[k] for k in deciding))
            present = [k for k in every if arguments[k] is not None]
            values = operands(b, *(arguments[k] for k in present), common=common, halves=halves, rounded=rounded)
            arrived: dict[str, SSAValue | None] = {**dict.fromkeys(every), **dict(zip(present, values, strict=True))}
            static = {k: arguments[k] for k in options}
            return finish(b, function(b, **arrived, **static), common)

        rule(*names, numbers=every)(meaning)
        return function

    return register


def stored(b: Builder, x: SSAValue) -> SSAValue:
    """x rounded to the dtype of the op's result, in which the CPU's kernel keeps it."""
    return _through(b, x, b.out[0][0], dtype_of(x))


Unary = Callable[["Builder", SSAValue], SSAValue]


def table(
    entries: Mapping[str, str | Unary], *, floating: bool = False, halves: Literal["wide", "own"] = "wide"
) -> None:
    """Register unary ops, one per entry: ATen overload -> the dialect's unary op, or a function of (b, x)."""
    for name, meaning in entries.items():
        pointwise(name, floating=floating, halves=halves)(_unary(meaning))


def _unary(meaning: str | Unary) -> Callable[..., SSAValue]:
    def unary(b: Builder, self: SSAValue) -> SSAValue:
        return b.unary(meaning, self) if isinstance(meaning, str) else meaning(b, self)

    return unary
