"""Random ops on the host, with the numbers of their programs: Threefry-2x32 of (seed, offset) and the element's index.

See `lazytpu.lowering.random` and `lazytpu.aten.random` for the definitions that these functions repeat in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch

from lazytpu.aten.host_arrays import from_numpy

Array = np.ndarray[Any, Any]
Rng = tuple[int, int]
"""Seed and offset."""
_LOW_WORD = 0xFFFFFFFF
_LOW = np.uint64(_LOW_WORD)
_WORD = np.uint64(32)
_SPLIT = float((1 << 27) + 1)
"""Dekker's factor, which splits a float64 into halves whose products are exact."""
_DROPPED = {torch.bfloat16: 16, torch.float16: 13}
"""Low bits of a float32 that the narrow dtypes drop."""


def words(rng: Rng, count: int) -> tuple[Array, Array]:
    """Return the two words of random bits of elements 0 to `count` - 1."""
    seed, offset = rng
    key = _threefry(_halves(seed), _halves(offset))
    index = np.arange(count, dtype=np.uint32)
    return _threefry((key[0], key[1]), (np.zeros_like(index), index))


def _halves(number: int) -> tuple[Array, Array]:
    return np.array([(number >> 32) & _LOW_WORD], np.uint32), np.array([number & _LOW_WORD], np.uint32)


def _threefry(key: tuple[Array, Array], counter: tuple[Array, Array]) -> tuple[Array, Array]:
    from lazytpu.lowering.random import PARITY, ROTATIONS  # here: it loads xDSL and every rule

    keys = (*key, key[0] ^ key[1] ^ np.uint32(PARITY))
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(distance)) | (y >> np.uint32(32 - distance)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def _wide_bits(rng: Rng, count: int) -> Array:
    high, low = words(rng, count)
    return (high.astype(np.uint64) << _WORD) | low


def unit(rng: Rng, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return numbers uniform on [0, 1), as `lazytpu.aten.random.draws.unit`."""
    count = prod(shape)
    if dtype is torch.float64:
        return torch.from_numpy((_wide_bits(rng, count) >> np.uint64(11)) * 2.0**-53).reshape(shape)
    high, low = words(rng, count)
    drawn = (high ^ low) >> np.uint32(8)
    scaled = drawn.astype(np.float32) * np.float32(2.0**-24)
    if dtype in _DROPPED:
        mask = np.uint32((_LOW_WORD << _DROPPED[dtype]) & _LOW_WORD)
        scaled = (scaled.view(np.uint32) & mask).view(np.float32)
    return torch.from_numpy(scaled).to(dtype).reshape(shape)


def _stream(rng: Rng, k: int) -> Rng:
    return rng[0], (rng[1] + (k << 60)) % (1 << 64)


def _rand(rng: Rng, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_complex:
        return torch.complex(*(unit(_stream(rng, k), shape, dtype.to_real()) for k in (0, 1)))
    return unit(rng, shape, dtype)


def _uniform(rng: Rng, shape: tuple[int, ...], dtype: torch.dtype, low: float, high: float) -> torch.Tensor:
    """Return low + u (high - low), where a result that rounds up to `high` becomes `low`."""
    if dtype.is_complex:
        parts = (_uniform(_stream(rng, k), shape, dtype.to_real(), low, high) for k in (0, 1))
        return torch.complex(*parts)
    if low == 0 and high == 1:
        return unit(rng, shape, dtype)
    compute = torch.float64 if dtype is torch.float64 else torch.float32
    ends = torch.tensor([low, high], dtype=compute, device="cpu")
    scaled = _fused(unit(rng, shape, dtype).to(compute), ends[1] - ends[0], ends[0]).to(dtype)
    low_, high_ = ends.to(dtype)
    return torch.where(scaled >= high_, low_, scaled)


def _fused(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Return x y + z, rounded once, as XLA's CPU programs compute it by a fused multiply-add."""
    if x.dtype is torch.float32:  # in float64 the product is exact
        return (x.double() * y.double() + z.double()).float()
    product = x * y
    parts = [(a * _SPLIT - (a * _SPLIT - a)) for a in (x, y)]
    (x_high, y_high), (x_low, y_low) = parts, (x - parts[0], y - parts[1])
    product_error = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    total = product + z
    of_z = total - product
    return total + ((product - (total - of_z)) + (z - of_z) + product_error)


def _between(rng: Rng, shape: tuple[int, ...], dtype: torch.dtype, low: int, end: int) -> torch.Tensor:
    """Return integers uniform on [low, end): the high 64 bits of (64 random bits) * (end - low)."""
    drawn, times = _wide_bits(rng, prod(shape)), (end - low) % (1 << 64)
    if times:
        times_high, times_low = np.uint64(times >> 32), np.uint64(times & _LOW_WORD)
        high, low_word = drawn >> _WORD, drawn & _LOW
        middle = high * times_low + ((low_word * times_low) >> _WORD)
        other = low_word * times_high + (middle & _LOW)
        drawn = high * times_high + (middle >> _WORD) + (other >> _WORD)
    shifted = from_numpy((drawn + np.uint64(low % (1 << 64))).view(np.int64), torch.int64).reshape(shape)
    if dtype is torch.bool:
        return shifted != 0
    return shifted.view(torch.uint64) if dtype is torch.uint64 else shifted.to(dtype)


Layout = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of the result."""


def rand(rng: Rng, drawn: Layout, /, **_: Any) -> torch.Tensor:
    return _rand(rng, *drawn)


def uniform(rng: Rng, drawn: Layout, /, **arguments: Any) -> torch.Tensor:
    return _uniform(rng, *drawn, float(arguments["from"]), float(arguments["to"]))


def randint(rng: Rng, drawn: Layout, /, *, high: int, low: int = 0, **_: Any) -> torch.Tensor:
    return _between(rng, *drawn, int(low), int(high))


def random_between(rng: Rng, drawn: Layout, /, **arguments: Any) -> torch.Tensor:
    return _between(rng, *drawn, int(arguments.get("from", 0)), int(arguments["to"]))


RANDOM: dict[str, Callable[..., torch.Tensor]] = {
    **dict.fromkeys(("aten.rand.default", "aten.rand.generator"), rand),
    **dict.fromkeys(("aten.rand_like.default", "aten.rand_like.generator"), rand),
    **dict.fromkeys(("aten.uniform_.default", "aten.uniform.default"), uniform),
    **dict.fromkeys(("aten.randint.default", "aten.randint.generator"), randint),
    **dict.fromkeys(("aten.randint.low", "aten.randint.low_generator"), randint),
    **dict.fromkeys(("aten.randint_like.default", "aten.randint_like.low_dtype"), randint),
    **dict.fromkeys(("aten.random_.to", "aten.random.to"), random_between),
}
"""Functions of (seed, offset), the layout of the result, and the arguments of an op."""
