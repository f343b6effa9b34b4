"""Dtypes that the CPU's kernels reject and torch's meta functions accept: without a kernel, or in a wrong combination.
The device rejects the same dtypes as the CPU, at the call and with the same error.

The CPU's own kernel is called, once per op and dtypes: on tensors of the same sizes if these are small, else on smaller
ones.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from math import inf
from typing import Any

import torch
from torch._ops import OpOverload

from lazytpu.frontend.inference.argument_checks import with_plain_ends
from lazytpu.frontend.inference.cpu_errors import call_quietly, on_cpu
from lazytpu.frontend.inference.infer import is_pointwise

# Sizes, counts and steps above this overflow in meta functions; the CPU's kernel checks each.
_HUGE = 1 << 31
FEW = 1 << 14  # maximum elements of the tensors with which the CPU is called
# Larger dimensions are cut to these sizes, one after the other, because some kernels need room for a window.
_SIZES = (2, 5, 16)
# Static sizes above this are not checked: the result may be as large, whatever its operands are.
_WIDE = 1 << 10

# Messages about dtypes, and about results that an in-place op cannot store. Other errors depend on sizes and values,
# which differ from the call's.
_REFUSALS = re.compile(
    r"not implemented for|can't be cast|scalar type|dtype|data ?type|not supported (for|on)|(does not|doesn't) support"
    r"|is not supported|are not supported|only supports?|indices must be|input types?|[Cc]omplex|[Bb]oolean|[Bb]ool "
    r"|floating|integral|(expected|Expected|must be|be of) .*\b(Float|Double|Long|Int|int|Byte|Bool|real)"
)
_OVERFLOWS = "cannot be converted to type"
# Messages that are not about dtypes: an op that the CPU lacks, and the values with which it is called.
_OTHERS = re.compile(r"Could not run|[Ss]ingular|converge|out of (range|bounds)")
# Accelerators also compute in these dtypes where the CPU has no kernel: rejected only if float32 is rejected, too.
_HALVES = (torch.float16, torch.bfloat16)
_WIDER = {**dict.fromkeys(_HALVES, torch.float32), torch.float32: torch.float64}
# Dtypes in which a factory cannot draw or count.
_STORED = (
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
# The CPU has no kernels for our own ops. transformers counts the tokens of experts by histc of integers on every device
# but the CPU, whose kernel rejects them. The CPU's backward of embedding bags crashes if there are indices and no bag.
UNASKED = re.compile(r"aten\.(histc|_embedding_bag_\w*backward)\.|lazytpu")

_BITS = (8, 16, 32, 64)
_FLOATS = tuple([torch.finfo(dtype).max for dtype in (torch.float16, torch.bfloat16, torch.float32)])
_GREATEST = (int(_FLOATS[0]), *(end for n in _BITS for end in ((1 << n - 1) - 1, 1 << n - 1, (1 << n) - 1)))
_INTS = sorted([*(-n for n in _GREATEST), *(n + 1 for n in _GREATEST)])
"""Where ranges of integers begin that a dtype holds, or holds negated, as in `sub`; and the greatest floats."""

_accepted: set[tuple[Any, ...]] = set()


def check_dtypes(op: OpOverload, bound: dict[str, Any], results: Any) -> None:
    """Raise the CPU's error when it has no kernel of `op` for these dtypes. `results` are the layouts of the op's
    results."""
    huge = huge_numbers(bound)
    key = (op, huge, *((name, _key(value)) for name, value in bound.items()))
    if key in _accepted:
        return
    if huge and count(bound, results) <= FEW:
        _asked(op, {name: on_cpu(value) for name, value in bound.items()}, strictly=True)
    pointwise = is_pointwise(op)
    dtype = bound.get("dtype")
    drawn = dtype is not None and torch.Tag.nondeterministic_seeded in op.tags
    has_dtype = next(tensors_of(bound.values()), None) is not None or dtype in _STORED or drawn
    if pointwise or (has_dtype and not UNASKED.match(str(op))):
        error = _refusal(op, bound, results)
        lenient = error is not None and not pointwise and _OVERFLOWS not in str(error)
        if lenient and any(t.dtype in _HALVES for t in tensors_of(bound.values())):
            wider = {name: _wider(value) for name, value in bound.items()}
            error = error if _refusal(op, wider, results) is not None else None
        if error is not None:
            raise error
    _accepted.add(key)


def huge_numbers(bound: dict[str, Any]) -> tuple[int, ...]:
    """Return the sizes, counts and steps among static arguments that may overflow in meta functions and rules."""
    return tuple([n for n in _statics(bound.values()) if n > _HUGE])


def _refusal(op: OpOverload, bound: dict[str, Any], results: Any) -> Exception | None:
    """Return the CPU's error about the dtypes, or None if it accepts them."""
    if count(bound, results) <= FEW:
        return _asked(op, {name: on_cpu(value) for name, value in bound.items()})[0]
    if is_pointwise(op):
        return _asked(op, {name: cut(value, 1) for name, value in bound.items()})[0]
    if any(n > _WIDE for n in _statics(bound.values())):
        return None
    for size in _SIZES:
        error, answered = _asked(op, {name: cut(value, size) for name, value in bound.items()})
        if answered:
            return error
    return None


def count(bound: dict[str, Any], results: Any) -> int:
    return sum(t.numel() for t in tensors_of(bound.values())) + _elements(results)


def _asked(op: OpOverload, arguments: dict[str, Any], strictly: bool = False) -> tuple[Exception | None, bool]:
    """Call the CPU's kernel. Returns its error about dtypes, if any, and whether the call tells anything about dtypes.

    With `strictly`, any error is raised.
    """
    schema, arguments = op._schema.arguments, with_plain_ends(op, arguments)
    parameters = [a for a in schema if not a.kwarg_only]
    positional = [arguments.get(a.name, a.default_value) for a in parameters]
    keywords = {a.name: arguments[a.name] for a in schema if a.kwarg_only and a.name in arguments}
    try:
        call_quietly(op, *positional, **keywords)
    except Exception as error:
        if strictly:
            raise
        return (error.with_traceback(None), True) if about_dtypes(error) else (None, False)
    return None, True


def about_dtypes(error: Exception) -> bool:
    """Return whether the CPU's error is about dtypes, and so independent of sizes and values, other than a number that
    a dtype cannot hold."""
    return _OVERFLOWS in str(error) or (_REFUSALS.search(str(error)) is not None and _OTHERS.search(str(error)) is None)


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.dim() == 0, value.numel() == 0
    if isinstance(value, list | tuple):
        return tuple(_key(v) for v in value)
    return value if isinstance(value, torch.dtype) else number_type(value)


def number_type(value: Any) -> Any:
    """Return a run-time number's part of the key: its type and, if a dtype cannot hold it, its range among `_INTS` or
    `_FLOATS`.

    The CPU's kernels refuse an `alpha`, `beta` or `value` that overflows the dtype of their tensors, and do so for all
    numbers of such a range. To unsigned dtypes a negative number is converted if its absolute value fits (`overflows`
    in c10/util/overflows.h). Infinity and NaN overflow nothing.
    """
    kind: Any = type(value)
    if kind is int and not -127 <= value <= 127:
        return "number", kind, bisect_right(_INTS, value)
    if kind is float and _FLOATS[0] < abs(value) < inf:
        return "number", kind, bisect_left(_FLOATS, abs(value))
    return kind


def tensors_of(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_of(value)


def _statics(values: Any) -> Iterator[int]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _statics(value)
        elif type(value) is int:
            yield abs(value)


def _elements(results: Any) -> int:
    if isinstance(results, list | tuple):
        return sum(map(_elements, results))
    return 0 if results is None else torch.Size(results.shape).numel()


def cut(value: Any, size: int) -> Any:
    """Return a CPU tensor like `value` with dimensions of at most `size`; other arguments as in `on_cpu`."""
    if isinstance(value, torch.Tensor):
        return on_cpu(torch.empty([min(n, size) for n in value.shape], dtype=value.dtype, device="meta"))
    return [cut(v, size) for v in value] if isinstance(value, list | tuple) else on_cpu(value)


def _wider(value: Any) -> Any:
    """Return an argument with half precision as float32, and float32 as float64: dtypes that differ stay different."""
    if isinstance(value, torch.Tensor):
        dtype = _WIDER.get(value.dtype, value.dtype)
        return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device="meta")
    return [_wider(v) for v in value] if isinstance(value, list | tuple) else value
