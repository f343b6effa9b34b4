"""Random invalid calls: a sample of an op with one argument corrupted."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo

from tools.conformance.entries import Entry, table
from tools.conformance.samples import Call, call_of, describe, tensors, tree_map

BASES = (torch.float32, torch.float32, torch.int64, torch.bool, torch.complex64)
DTYPES = (*(torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16),
          *(torch.float32, torch.float64, torch.complex64))  # fmt: skip
SIZES = (0, -1, -5, 2, 7, 1000, 1 << 36, 1 << 62, (1 << 63) - 1, -(1 << 63))
NUMBERS = (0.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 1j)
VALUES = (0.0, -1.0, 2.0, math.nan, math.inf)
# They write to disk, spawn processes, or have no CPU form to compare with.
LEFT_OUT = ("_flash_attention", "_efficient_attention", "sparse", "to_sparse", "jiterator")


@dataclass
class Case:
    """A call of `function`; `late`: it is its values that are wrong, so that the error may come with a read."""

    number: int
    text: str
    function: Callable[..., Any]
    call: Call
    late: bool


def draw(number: int, only: str = "") -> Case | None:
    """The case of that number, the same in every process; None where nothing can be spoiled."""
    rng = random.Random(number)
    names = [name for name in _names() if only in name]
    info = table()[name := rng.choice(names)]
    dtype = rng.choice([d for d in BASES if d in info.supported_dtypes("cpu")] or [torch.float32])
    samples = _samples(name, dtype)
    if not samples:
        return None
    torch.manual_seed(number)
    call = _copied(rng.choice(samples))
    variant = rng.choice(["function", "function", "inplace", "out"])
    function, kind = info.get_op(), "as it is"
    if variant == "inplace" and info.inplace_variant is not None and isinstance(call[0], torch.Tensor):
        function = info.inplace_variant
    elif variant == "out" and info.supports_out and (spoiled := _out(rng, info, call)) is not None:
        call, kind = spoiled
    else:
        variant = "function"
    spoils = list(SPOILS)
    rng.shuffle(spoils)
    if variant != "out" or rng.random() < 0.3:
        for spoil in spoils:
            changed = SPOILS[spoil](rng, call)
            if changed is not None:
                call, kind = changed, f"{kind}, {spoil}"
                break
        else:
            return None
    late = kind.endswith((", index", ", value"))
    return Case(number, f"{name} {variant} ({kind}): {describe(call, 400)}", function, call, late)


@cache
def _names() -> list[str]:
    return sorted(name for name in table() if not any(part in name for part in LEFT_OUT))


@cache
def _samples(name: str, dtype: torch.dtype) -> list[Call]:
    try:
        return [call_of(sample) for _, sample in Entry(name, table()[name], dtype).samples(6)]
    except Exception:  # noqa: BLE001  (torch's own samples of some dtypes fail)
        return []


def _copied(call: Call) -> Call:
    return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, call)


def _replaced(call: Call, old: Any, new: Any) -> Call:
    """Return the call with one leaf, by identity, replaced; of equal numbers, the first."""
    done = False

    def leaf(x: Any) -> Any:
        nonlocal done
        if x is old and not done:
            done = True
            return new
        return x

    return tree_map(leaf, call)


def _strided(call: Call) -> list[torch.Tensor]:
    return [t for t in tensors(call) if t.layout is torch.strided]


def _leaves(call: Call, *kinds: type) -> list[Any]:
    leaves: list[Any] = []
    tree_map(lambda x: leaves.append(x) if type(x) in kinds else None, call)
    return leaves


def _shape(rng: random.Random, call: Call) -> Call | None:
    if not (strided := _strided(call)):
        return None
    old = rng.choice(strided)
    variants: list[Callable[[], torch.Tensor]] = [lambda: torch.stack([old, old])]
    if old.dim():
        dim = rng.randrange(old.dim())
        variants += [lambda: torch.cat([old, old], dim), lambda: old.narrow_copy(dim, 0, 0)]
        if old.shape[dim]:
            variants += [lambda: old.select(dim, 0).clone(), lambda: old.narrow_copy(dim, 0, old.shape[dim] - 1)]
    return _replaced(call, old, rng.choice(variants)())


def _dtype(rng: random.Random, call: Call) -> Call | None:
    if not (strided := _strided(call)):
        return None
    old = rng.choice(strided)
    return _replaced(call, old, old.to(rng.choice(DTYPES)))


def _dtypes(rng: random.Random, call: Call) -> Call | None:
    if not (strided := _strided(call)):
        return None
    old, new = rng.choice(strided).dtype, rng.choice(DTYPES)
    return tree_map(lambda x: x.to(new) if isinstance(x, torch.Tensor) and x.dtype is old else x, call)


def _size(rng: random.Random, call: Call) -> Call | None:
    return _replaced(call, rng.choice(integers), rng.choice(SIZES)) if (integers := _leaves(call, int)) else None


def _number(rng: random.Random, call: Call) -> Call | None:
    return _replaced(call, rng.choice(floats), rng.choice(NUMBERS)) if (floats := _leaves(call, float)) else None


def _index(rng: random.Random, call: Call) -> Call | None:
    indices = [t for t in _strided(call) if not t.is_floating_point() and not t.is_complex() and t.numel()]
    if not indices:
        return None
    old, by = rng.choice(indices), rng.choice((-100, 100))
    return None if old.dtype is torch.bool else _replaced(call, old, old + by)


def _value(rng: random.Random, call: Call) -> Call | None:
    floats = [t for t in _strided(call) if t.is_floating_point() and t.numel()]
    if not floats:
        return None
    old = rng.choice(floats)
    return _replaced(call, old, torch.full_like(old, rng.choice(VALUES)))


SPOILS: dict[str, Callable[[random.Random, Call], Call | None]] = {
    "shape": _shape,
    "dtype": _dtype,
    "all dtypes": _dtypes,
    "size": _size,
    "number": _number,
    "index": _index,
    "value": _value,
}


def _out(rng: random.Random, info: OpInfo, call: Call) -> tuple[Call, str] | None:
    """Return the call with an `out=` of a wrong dtype or shape, or one that overlaps itself or an operand."""
    try:
        result = info.get_op()(call[0], *call[1], **call[2])
    except Exception:  # noqa: BLE001
        return None
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
        return None
    kind = rng.choice(["dtype", "shape", "expanded", "right", "operand", "overlapping"])
    target = torch.empty_like(result)
    if kind == "dtype":
        target = target.to(rng.choice(DTYPES))
    elif kind == "shape":
        target = torch.empty((2, *result.shape), dtype=result.dtype)
    elif kind == "expanded":
        target = torch.empty((), dtype=result.dtype).expand(result.shape)
    elif kind in ("operand", "overlapping"):
        operands = [t for t in _strided(call) if t.dtype == result.dtype]
        operands = [t for t in operands if t.is_contiguous() and t.numel() > result.numel()]
        if kind == "operand":
            operands = [t for t in _strided(call) if t.dtype == result.dtype and t.shape == result.shape]
        if not operands:
            return None
        target = rng.choice(operands)
        if kind == "overlapping":
            target = target.view(-1)[1 : 1 + result.numel()].view(result.shape)
    return (call[0], call[1], {**call[2], "out": target}), f"out {kind}"
