"""Random numbers of the basic distributions as functions of (seed, offset), the building blocks of the rules (R7).

The number drawn for an element uses only the bits of its row-major index. A rule that needs several numbers per element
takes further streams, whose offsets differ in the top 4 bits. Counting never reaches these, nor do the ops of one
decomposition, which differ in the 12 bits below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full, wide, with_number
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder

    Rng = tuple[SSAValue, SSAValue]

# dtype -> bits of its fraction, the integer dtype of its bits, and their width.
_FRACTION = {"f32": (24, "ui32", 32), "f64": (53, "ui64", 64)}
# Low bits of an f32 that the narrow dtypes drop.
_DROPPED = {"bf16": 16, "f16": 13}


def stream(b: Builder, rng: Rng, k: int) -> Rng:
    """The k-th independent stream of a random op."""
    seed, offset = rng
    return seed, b.add(offset, b.constant(k << 60, "ui64")) if k else offset


def _top_bits(b: Builder, rng: Rng, shape: Sequence[int], dtype: str, count: int) -> SSAValue:
    """`count` random bits as an integer, in the unsigned dtype as wide as `dtype`."""
    _, bits, width = _FRACTION[dtype]
    drawn = b.random_bits(*rng, shape, bits)
    return b.binary("shift_right_logical", drawn, full(b, width - count, drawn))


def unit(b: Builder, rng: Rng, shape: Sequence[int], dtype: str) -> SSAValue:
    """Uniform on [0, 1): multiples of 2^-24 (f32) or 2^-53 (f64). In f16 and bf16, the f32 number rounded down: 1 is
    never reached, and each number has the probability of the interval up to the next."""
    compute = wide(dtype)
    count, *_ = _FRACTION[compute]
    drawn = with_number(b, "mul", b.convert(_top_bits(b, rng, shape, compute, count), compute), 2.0**-count)
    if dtype in _DROPPED:
        mask = (0xFFFFFFFF << _DROPPED[dtype]) & 0xFFFFFFFF
        bits = b.bitcast_convert(drawn, "ui32")
        drawn = b.bitcast_convert(b.and_(bits, full(b, mask, bits)), "f32")
    return b.convert(drawn, dtype)


def open_unit(b: Builder, rng: Rng, shape: Sequence[int], dtype: str) -> SSAValue:
    """Uniform on (0, 1), f32 or f64: odd multiples of 2^-24 or 2^-53, symmetric about 1/2."""
    count = _FRACTION[dtype][0] - 1
    drawn = b.convert(_top_bits(b, rng, shape, dtype, count), dtype)
    return with_number(b, "add", with_number(b, "mul", drawn, 2.0**-count), 2.0 ** -(count + 1))


def normal(b: Builder, rng: Rng, shape: Sequence[int], dtype: str) -> SSAValue:
    """Standard normal, f32 or f64: sqrt(2) erf_inv(u) for u uniform on (-1, 1), odd multiples of 2^-24 or 2^-53. These
    are exact in the dtype, symmetric and never 0 or 1; the largest result is 5.4 or 8.3."""
    count, _, width = _FRACTION[dtype]
    drawn = b.bitcast_convert(_top_bits(b, rng, shape, dtype, count), f"i{width}")
    odd = with_number(b, "add", b.add(drawn, drawn), 1 - (1 << count))
    u = with_number(b, "mul", b.convert(odd, dtype), 2.0**-count)
    return with_number(b, "mul", b.unary("erf_inv", u), math.sqrt(2))


def exponential(b: Builder, rng: Rng, shape: Sequence[int], dtype: str) -> SSAValue:
    """Exponential with rate 1, f32 or f64: -log of an open uniform number, so never 0 or infinite."""
    return b.neg(b.log(open_unit(b, rng, shape, dtype)))


def below(b: Builder, rng: Rng, shape: Sequence[int], count: SSAValue) -> SSAValue:
    """Integers uniform on [0, count), ui64. `count` is 0-d ui64, and 0 stands for 2^64.

    The high 64 bits of (64 random bits) x count, computed by 32-bit halves. Probabilities differ by less than
    count / 2^64, and there is no division, which the TPU lacks.
    """
    drawn = b.random_bits(*rng, shape, "ui64")

    def halves(x: SSAValue) -> tuple[SSAValue, SSAValue]:
        return b.binary("shift_right_logical", x, full(b, 32, x)), b.and_(x, full(b, 0xFFFFFFFF, x))

    times = b.broadcast_to(count, tuple(shape))
    (high, low), (times_high, times_low) = halves(drawn), halves(times)
    middle = b.add(b.mul(high, times_low), halves(b.mul(low, times_low))[0])
    middle_high, middle_low = halves(middle)
    other_high, _ = halves(b.add(b.mul(low, times_high), middle_low))
    product = b.add(b.mul(high, times_high), b.add(middle_high, other_high))
    full_range = b.compare("EQ", count, b.constant(0, "ui64"))
    return b.select(full_range, drawn, product)


def chance(b: Builder, rng: Rng, p: SSAValue) -> SSAValue:
    """True with probability p, a tensor of f32 or f64: never for 0, always for 1."""
    return b.compare("LT", unit(b, rng, shape_of(p), dtype_of(p)), p)


def keep_and_scale(b: Builder, p: Scalar, dtype: str) -> tuple[SSAValue, SSAValue]:
    """For dropout with probability p: (the probability to keep, 0-d f32; the factor of kept elements, 0-d `dtype`)."""
    keep, keep_in_dtype = (b.sub(b.constant(1, kind), b.scalar(p, kind)) for kind in ("f32", dtype))
    never = b.compare("EQ", keep_in_dtype, b.constant(0, dtype))
    return keep, b.select(never, b.constant(0, dtype), b.div(b.constant(1, dtype), keep_in_dtype))


def key(b: Builder, rng: Rng) -> SSAValue:
    """A key for templates that draw their own numbers: two ui32 words."""
    return b.random_bits(*rng, (2,), "ui32")
