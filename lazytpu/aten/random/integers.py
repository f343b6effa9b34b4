"""Random integers, permutations and samples from weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.random.draws import below, exponential, unit
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import bitwidth, dtype_of, is_float, is_unsigned, shape_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xdsl.ir import SSAValue

    from lazytpu.aten.random.draws import Rng
    from lazytpu.ir.builder import Builder

# Integers up to 2^digits are exact in the dtype (`std::numeric_limits<T>::digits`).
_EXACT = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}


def _largest(dtype: str) -> int:
    """The largest number that `random_()` draws."""
    if is_float(dtype):
        return 1 << _EXACT[dtype]
    return 1 if dtype == "i1" else (1 << (bitwidth(dtype) - (0 if is_unsigned(dtype) else 1))) - 1


def _whole(b: Builder, value: Scalar | SSAValue | int) -> SSAValue:
    """A number as 0-d ui64, modulo 2^64."""
    if isinstance(value, int):
        return b.constant(value % (1 << 64), "ui64")
    if isinstance(value, Scalar):
        value = b.scalar(value, "i64")
    return b.bitcast_convert(b.reshape(b.convert(value, "i64"), ()), "ui64")


def _between(
    b: Builder, low: Scalar | int, end: Scalar | SSAValue | int, dtype: str, shape: Sequence[int], rng: Rng
) -> SSAValue:
    """Uniform on low, low + 1, …, end - 1."""
    first, past = _whole(b, low), _whole(b, end)
    drawn = below(b, rng, shape, b.sub(past, first))
    shifted = b.bitcast_convert(b.add(drawn, b.broadcast_to(first, tuple(shape))), "i64")
    if dtype == "i1":
        return b.compare("NE", shifted, full(b, 0, shifted))
    return b.bitcast_convert(shifted, "ui64") if dtype == "ui64" else b.convert(shifted, dtype)


@rule("aten.random_.default", "aten.random.default", random=True)
def random(b: Builder, self: SSAValue, generator: Any = None, *, rng: Rng) -> SSAValue:
    """Integers from 0 to the largest of the dtype; for floats, to the last before which all integers are exact."""
    dtype = dtype_of(self)
    return _between(b, 0, _largest(dtype) + 1, dtype, shape_of(self), rng)


@rule("aten.random_.to", "aten.random.to", numbers=("to",), random=True)
def random_to(b: Builder, self: SSAValue, to: Scalar, generator: Any = None, *, rng: Rng) -> SSAValue:
    """Integers on [0, to)."""
    return _between(b, 0, to, dtype_of(self), shape_of(self), rng)


@rule("aten.random_.from", "aten.random.from", numbers=("from", "to"), random=True)
def random_from(
    b: Builder, self: SSAValue, from_: Scalar, to: Scalar | None, generator: Any = None, *, rng: Rng
) -> SSAValue:
    """Integers on [from, to), or up to the largest of the dtype if `to` is None: of int64 if `from` is its least."""
    dtype = dtype_of(self)
    end: Scalar | SSAValue | None = to
    if end is None:
        least = b.constant(-(1 << 63), "i64")
        all_of_them = b.compare("EQ", b.scalar(from_, "i64"), least)
        end = b.select(all_of_them, least, b.constant(_largest(dtype) + 1 - (1 << 64) * (dtype == "i64"), "i64"))
    return _between(b, from_, end, dtype, shape_of(self), rng)


@rule(
    "aten.randint.default",
    "aten.randint.generator",
    "aten.randint.low",
    "aten.randint.low_generator",
    "aten.randint_like.default",
    "aten.randint_like.generator",
    "aten.randint_like.low_dtype",
    "aten.randint_like.low_generator_dtype",
    "aten.randint_like.Tensor",
    "aten.randint_like.Tensor_generator",
    numbers=("low", "high"),
    random=True,
)
def randint(b: Builder, high: Scalar | SSAValue, low: Scalar | int = 0, *, rng: Rng, **options: Any) -> SSAValue:
    """Integers on [low, high)."""
    dtype, shape = b.out[0]
    return _between(b, low, high, dtype, shape, rng)


@rule("aten.randperm.default", "aten.randperm.generator", random=True)
def randperm(b: Builder, n: int, *, rng: Rng, **options: Any) -> SSAValue:
    """A permutation of 0 … n - 1, by sorting random keys whose low bits hold the index.

    One array of 64-bit keys sorts several times as fast as pairs of key and index. For 1,000,000 elements keys have 44
    random bits. If two agree, the lower index comes first; this happens in 3 of 100 permutations of that size.
    """
    dtype, shape = b.out[0]
    if n < 2:
        return b.constant(0, dtype, shape)
    low = (1 << (n - 1).bit_length()) - 1
    drawn = b.random_bits(*rng, shape, "ui64")
    keys = b.or_(b.and_(drawn, full(b, (1 << 64) - 1 - low, drawn)), b.iota("ui64", shape, 0))
    (ordered,) = b.sort([keys], 0)
    return b.convert(b.and_(ordered, full(b, low, ordered)), dtype)


def _check_weights(b: Builder, weights: SSAValue) -> None:
    """Register the checks that weights are finite and not negative, and that no row is all 0."""
    zero = full(b, 0, weights)
    ok = b.and_(b.compare("GE", weights, zero), b.unary("is_finite", weights))
    b.check(ok, "probability tensor contains either `inf`, `nan` or element < 0", "RuntimeError")
    sums = b.reduce("add", weights, [len(shape_of(weights)) - 1])
    ok = b.compare("GT", sums, full(b, 0, sums))
    b.check(ok, "invalid multinomial distribution (sum of probabilities <= 0)", "RuntimeError")


@rule("aten.multinomial.default", random=True)
def multinomial(
    b: Builder, self: SSAValue, num_samples: int, replacement: bool = False, generator: Any = None, *, rng: Rng
) -> SSAValue:
    """Indices drawn with the weights in the rows of self.

    Without replacement, they are the indices of the largest weight / exponential numbers, in the order of successive
    draws (Efraimidis and Spirakis, 2006). With replacement, uniform numbers are located among the running sums of the
    weights. They stay below the last sum (u total rounds below it), so no weight of 0 is drawn.
    """
    from lazytpu.aten.sorting.sort import ordered

    dtype, shape = ("f64" if dtype_of(self) == "f64" else "f32"), shape_of(self)
    weights, last = b.convert(self, dtype), len(shape) - 1
    _check_weights(b, weights)
    if not replacement or num_samples == 1:
        race = b.div(weights, exponential(b, rng, shape, dtype))
        if num_samples == 1:
            return b.reshape(b.argreduce("max", race, last)[1], b.out[0][1])
        _, indices = ordered(b, race, last, descending=True)
        return b.slice(indices, [0] * len(shape), b.out[0][1])
    sums = b.cumulative("add", weights, last)
    total = b.slice(sums, [*([0] * last), shape[-1] - 1], shape)
    result = b.out[0][1]
    drawn = b.mul(unit(b, rng, result, dtype), b.broadcast_to(total, result))
    return b.template("searchsorted", [sums, drawn], [("i64", result)], side="right", wide=True)[0]
