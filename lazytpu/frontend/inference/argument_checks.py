"""Checks of Python numbers that the CPU makes in its kernels: ranges of distributions, and numbers outside a dtype.

Numbers are passed at run time and are not part of a record's key, so the ops below are checked at every call. The CPU's
own kernel is called on tensors of a few elements, which raises its own error and records nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

# Ops whose numbers are always checked: parameters of distributions, and ends of intervals.
_RANGES = frozenset(
    f"aten.{name}"
    for name in """
    bernoulli_.float bernoulli.p cauchy_.default cauchy.default exponential_.default exponential.default
    geometric_.default geometric.default linspace.default logspace.default log_normal_.default log_normal.default
    normal_.default normal_functional.default normal.Tensor_float normal.float_float uniform_.default uniform.default
    random_.to random.to random_.from random.from randint.default randint.generator randint.low randint.low_generator
    randint_like.default randint_like.generator randint_like.low_dtype randint_like.low_generator_dtype
    """.split()
)
# Ops that accept all positive numbers. The backward ops refuse a negative slope if the result replaced the argument.
_SIGNS = frozenset(
    f"aten.{name}"
    for name in """
    celu.default celu_.default elu_backward.default leaky_relu_backward.default mvlgamma.default mvlgamma_.default
    rrelu_with_noise_backward.default smooth_l1_loss.default
    """.split()
)
# Ops that reject a number that the dtype cannot hold; most ops wrap it, or treat it as infinite.
_CONVERSIONS = frozenset(
    f"aten.{name}"
    for name in """
    _foreach_clamp_max.Scalar _foreach_clamp_max_.Scalar _foreach_clamp_min.Scalar _foreach_clamp_min_.Scalar
    clamp.default clamp_.default clamp_max.default clamp_max_.default clamp_min.default clamp_min_.default
    constant_pad_nd.default fill.Scalar fill_.Scalar full.default full_like.default hardtanh.default hardtanh_.default
    index_add.default index_add_.default index_fill.int_Scalar index_fill_.int_Scalar
    masked_fill.Scalar masked_fill_.Scalar new_full.default pow.Tensor_Scalar pow_.Scalar scalar_tensor.default
    scatter.value scatter_.value threshold.default threshold_.default
    """.split()
)
_REFUSALS = "cannot be converted", "cannot do hardtanh on an unsigned type", "outside the representable range"
"The messages of the CPU's kernels for such a number; the last is for the bounds of `clamp`, from torch 2.15 on."
# Every dtype holds numbers up to int8's maximum. Floats hold greater ones, also infinities and NaN.
_ALWAYS_FITS = 127
_INTEGERS = "aten.random", "aten.randint"
_PLAIN = {"from": 0, "low": 0, "to": 1, "high": 1}
_EXACT = 1 << 8  # bfloat16 represents every integer up to here
_FLOATS = {t: torch.finfo(t).max for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}

# Arguments that do not affect the checks.
_IGNORED = frozenset({"generator", "device", "layout", "pin_memory", "memory_format"})


def checked(op: OpOverload, record: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `record`, the recording kernel of `op`, with the checks of its numbers; returns `record` if there are
    none."""
    name = str(op)
    if name not in _RANGES | _SIGNS | _CONVERSIONS:
        return record
    always, warns = name in _RANGES, name.startswith(_INTEGERS)
    fit = _positive if name in _SIGNS else _fit
    names = [a.name for a in op._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if always or not fit(args[0], (*args, *kwargs.values())):
            keywords = tuple((k, _key(k, v)) for k, v in kwargs.items() if k not in _IGNORED)
            # The CPU warns at each call about integers that a floating-point dtype cannot distinguish.
            again = warns and any(type(end) is int and abs(end) > _EXACT for end in args)
            ask = _ask.__wrapped__ if again else _ask
            ask(op, torch.get_default_dtype(), tuple(map(_key, names, args)), keywords)
        return record(*args, **kwargs)

    return kernel


def with_plain_ends(op: OpOverload, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an op, but small ends of an interval of integers, for a question about dtypes: the CPU's kernel
    would warn again of ends that a dtype cannot tell from others."""
    if not str(op).startswith(_INTEGERS):
        return arguments
    return {name: _PLAIN[name] if name in _PLAIN and type(v) is int else v for name, v in arguments.items()}


def _fit(first: Any, values: tuple[Any, ...]) -> bool:
    """Return whether the numbers obviously fit the dtype of `first`, so that the CPU need not be called."""
    largest = _FLOATS.get(first.dtype) if isinstance(first, torch.Tensor) else None
    limit = largest or _ALWAYS_FITS
    tensors = first if isinstance(first, list | tuple) else (first,)
    least = 0 if any(isinstance(t, torch.Tensor) and not t.dtype.is_signed for t in tensors) else -limit
    for value in values:
        kind = type(value)
        if kind is complex:
            return False
        if kind in (int, float) and not least <= value <= limit and (largest is None or math.isfinite(value)):
            return False
    return True


def _positive(_first: Any, values: tuple[Any, ...]) -> bool:
    """Return whether all numbers are positive. NaN is not."""
    return all(value > 0 for value in values if type(value) in (int, float))


@dataclass(frozen=True)
class _Kind:
    """The properties of a tensor that matter to the checks.

    `elements` is 0, 1 or 2, where 2 means more: some kernels treat a single element as a special case.
    """

    dtype: torch.dtype
    rank: int
    elements: int


def _key(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Kind(value.dtype, value.dim(), min(value.numel(), 2))
    if name == "steps":  # as for tensors: 0, 1, or 2 for more
        return min(value, 2)
    if name == "size":
        return (min(math.prod(value), 2),) if value else ()
    return tuple(_key(name, v) for v in value) if isinstance(value, list | tuple) else value


@functools.lru_cache(maxsize=4096)
def _ask(op: OpOverload, default: torch.dtype, args: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...]) -> None:
    """Raise the CPU's error; `default` is torch's default dtype.

    torch's own generator draws no number: distributions get another generator, or no elements.
    """
    ranges = str(op) in _RANGES | _SIGNS
    extra: dict[str, Any] = {}
    if any(a.name == "generator" for a in op._schema.arguments):
        extra["generator"] = torch.Generator()

    def small(value: Any) -> Any:
        if isinstance(value, _Kind):
            count = 0 if ranges and not extra else value.elements
            return torch.zeros([count] * max(value.rank, count != 1), dtype=value.dtype)
        if isinstance(value, tuple):
            return [0] if ranges else [small(v) for v in value]  # distributions take one list: the size
        return value

    try:
        with torch.no_grad():
            op(*map(small, args), **{name: small(value) for name, value in keywords}, **extra)
    except RuntimeError as error:
        if ranges or any(refusal in str(error) for refusal in _REFUSALS):
            raise
