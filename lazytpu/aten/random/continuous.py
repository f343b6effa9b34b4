"""Random ops of continuous distributions, Bernoulli numbers and dropout.

A number depends only on (seed, offset) and the element's index. So numbers are the same in every mode and for any cuts
of the trace, and differ from those of torch's CPU generator. In-place ops return the new value of self; the functional
forms share their rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lazytpu.aten.pointwise.operands import full, number, wide, with_number
from lazytpu.aten.promotion import promote
from lazytpu.aten.random.draws import chance, exponential, keep_and_scale, normal, open_unit, stream, unit
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import REAL_OF, dtype_of, is_complex, is_float, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.random.draws import Rng
    from lazytpu.ir.builder import Builder


def _computed(dtype: str) -> str:
    """The dtype in which numbers for a tensor of `dtype` are drawn: f32, or f64 where f32 cannot hold the result."""
    return wide(dtype) if is_float(dtype) else "f64"


def _spread(b: Builder, value: Scalar | SSAValue, dtype: str, shape: Sequence[int]) -> SSAValue:
    """A number or tensor in `dtype`, broadcast to `shape`."""
    return promote(b, value, to=dtype, shape=tuple(shape))[0]


@rule("aten.uniform_.default", "aten.uniform.default", numbers=("from", "to"), random=True)
def uniform(b: Builder, self: SSAValue, from_: Scalar, to: Scalar, generator: Any = None, *, rng: Rng) -> SSAValue:
    """from + u (to - from). A result that rounds up to `to` becomes `from`, as in ATen's CUDA kernel (uniform_kernel).
    A complex number has both parts drawn this way."""
    dtype, shape = dtype_of(self), shape_of(self)
    if is_complex(dtype):
        like = b.unary("real", self)
        return b.binary("complex", *(uniform(b, like, from_, to, rng=stream(b, rng, k)) for k in (0, 1)))
    compute = wide(dtype)
    if from_.value == 0 and to.value == 1:
        return unit(b, rng, shape, dtype)
    low, high = _spread(b, from_, compute, shape), _spread(b, to, compute, shape)
    scaled = b.add(low, b.mul(b.convert(unit(b, rng, shape, dtype), compute), b.sub(high, low)))
    scaled, low, high = b.convert(scaled, dtype), b.convert(low, dtype), b.convert(high, dtype)
    return b.select(b.compare("GE", scaled, high), low, scaled)


@rule("aten.rand.default", "aten.rand.generator", "aten.rand_like.default", "aten.rand_like.generator", random=True)
def rand(b: Builder, *, rng: Rng, **options: Any) -> SSAValue:
    dtype, shape = b.out[0]
    if is_complex(dtype):
        return b.binary("complex", *(unit(b, stream(b, rng, k), shape, REAL_OF[dtype]) for k in (0, 1)))
    return unit(b, rng, shape, dtype)


def _scaled_normal(b: Builder, mean: Scalar | SSAValue, std: Scalar | SSAValue, rng: Rng) -> SSAValue:
    """mean + std z in the dtype and shape of the result. A complex z has independent parts of variance 1/2."""
    dtype, shape = b.out[0]
    if is_complex(dtype):
        half = REAL_OF[dtype]
        parts = [with_number(b, "mul", normal(b, stream(b, rng, k), shape, half), math.sqrt(0.5)) for k in (0, 1)]
        z = b.binary("complex", *parts)
        return b.add(b.mul(z, _spread(b, std, dtype, shape)), _spread(b, mean, dtype, shape))
    compute = _computed(dtype)  # integers too: torch accepts them if they are empty
    z = normal(b, rng, shape, compute)
    return b.convert(b.add(b.mul(z, _spread(b, std, compute, shape)), _spread(b, mean, compute, shape)), dtype)


@rule(
    "aten.normal_.default",
    "aten.normal_functional.default",
    "aten.normal.Tensor_float",
    "aten.normal.float_Tensor",
    "aten.normal.Tensor_Tensor",
    "aten.normal.float_float",
    numbers=("mean", "std"),
    random=True,
)
def scaled_normal(
    b: Builder,
    mean: Scalar | SSAValue,
    std: Scalar | SSAValue,
    *,
    rng: Rng,
    self: SSAValue | None = None,
    **options: Any,
) -> SSAValue:
    """mean + std z, in the shape of self, in `size`, or in the broadcast of mean and std."""
    if self is not None:
        b.out = [(dtype_of(self), shape_of(self))]
    if not isinstance(std, Scalar):
        b.check(b.compare("GE", std, full(b, 0, std)), "normal expects all elements of std >= 0.0", "RuntimeError")
    return _scaled_normal(b, mean, std, rng)


@rule("aten.randn.default", "aten.randn.generator", "aten.randn_like.default", "aten.randn_like.generator", random=True)
def randn(b: Builder, *, rng: Rng, **options: Any) -> SSAValue:
    return _scaled_normal(b, Scalar("float", 0.0), Scalar("float", 1.0), rng)


@rule("aten.log_normal_.default", "aten.log_normal.default", numbers=("mean", "std"), random=True)
def log_normal(b: Builder, self: SSAValue, mean: Scalar, std: Scalar, generator: Any = None, *, rng: Rng) -> SSAValue:
    """e^(mean + std z)."""
    dtype, shape = dtype_of(self), shape_of(self)
    compute = wide(dtype)
    z = normal(b, rng, shape, compute)
    return b.convert(b.exp(b.add(b.mul(z, _spread(b, std, compute, shape)), _spread(b, mean, compute, shape))), dtype)


@rule("aten.exponential_.default", "aten.exponential.default", numbers=("lambd",), random=True)
def scaled_exponential(b: Builder, self: SSAValue, lambd: Scalar, generator: Any = None, *, rng: Rng) -> SSAValue:
    """Exponential with rate `lambd`."""
    dtype, shape = dtype_of(self), shape_of(self)
    compute = wide(dtype)
    return b.convert(b.div(exponential(b, rng, shape, compute), _spread(b, lambd, compute, shape)), dtype)


@rule("aten.geometric_.default", "aten.geometric.default", numbers=("p",), random=True)
def geometric(b: Builder, self: SSAValue, p: Scalar, generator: Any = None, *, rng: Rng) -> SSAValue:
    """The number of trials up to the first success: ceil(log u / log(1 - p)), at least 1."""
    dtype, shape = dtype_of(self), shape_of(self)
    compute = _computed(dtype)
    fails = b.unary("log1p", b.neg(_spread(b, p, compute, shape)))
    trials = b.unary("ceil", b.div(b.log(open_unit(b, rng, shape, compute)), fails))
    return b.convert(b.max(trials, full(b, 1, trials)), dtype)


@rule("aten.cauchy_.default", "aten.cauchy.default", numbers=("median", "sigma"), random=True)
def cauchy(b: Builder, self: SSAValue, median: Scalar, sigma: Scalar, generator: Any = None, *, rng: Rng) -> SSAValue:
    """median + sigma tan(pi (u - 1/2)). Near the tails it is 1 / tan of pi times the distance from the tail, since pi
    times a number near 1/2 would lose precision."""
    dtype, shape = dtype_of(self), shape_of(self)
    compute = wide(dtype)
    u = open_unit(b, rng, shape, compute)
    centred, tail = with_number(b, "sub", u, 0.5), b.min(u, b.sub(full(b, 1, u), u))
    is_tail = b.compare("LT", tail, full(b, 0.25, tail))
    slope = b.unary("tan", with_number(b, "mul", b.select(is_tail, tail, b.abs(centred)), math.pi))
    magnitude = b.select(is_tail, b.div(full(b, 1, slope), slope), slope)
    value = b.mul(magnitude, b.unary("sign", centred))
    return b.convert(b.add(b.mul(value, _spread(b, sigma, compute, shape)), _spread(b, median, compute, shape)), dtype)


def _chance(b: Builder, p: Scalar | SSAValue, dtype: str, shape: Sequence[int], rng: Rng) -> SSAValue:
    """1 with probability p, else 0, in `dtype`."""
    compute = "f32" if isinstance(p, Scalar) or not is_float(dtype_of(p)) else wide(dtype_of(p))
    if not isinstance(p, Scalar):  # numbers are checked when they are recorded
        wide_p = b.convert(p, compute)
        ok = b.and_(b.compare("GE", wide_p, full(b, 0, wide_p)), b.compare("LE", wide_p, full(b, 1, wide_p)))
        b.check(ok, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.", "RuntimeError")
    return b.convert(chance(b, rng, _spread(b, p, compute, shape)), dtype)


@rule(
    "aten.bernoulli_.float",
    "aten.bernoulli_.Tensor",
    "aten.bernoulli.p",
    "aten.bernoulli.Tensor",
    numbers=("p",),
    random=True,
)
def bernoulli(b: Builder, self: SSAValue, p: Scalar | SSAValue, generator: Any = None, *, rng: Rng) -> SSAValue:
    """1 with probability p, else 0, in the shape and dtype of self."""
    return _chance(b, p, dtype_of(self), shape_of(self), rng)


@rule("aten.bernoulli.default", random=True)
def bernoulli_of(b: Builder, self: SSAValue, generator: Any = None, *, rng: Rng) -> SSAValue:
    """1 with the probability in self, else 0."""
    return _chance(b, self, dtype_of(self), shape_of(self), rng)


@rule("aten.native_dropout.default", numbers=("p",), random=True)
def native_dropout(
    b: Builder, input: SSAValue, p: Scalar, train: bool | None, *, rng: Rng
) -> tuple[SSAValue, SSAValue]:
    """(x mask / (1 - p), mask), where a mask element is true with probability 1 - p; x and all true in evaluation.

    As in `native_dropout_cpu`, dropping an infinite x gives NaN, and an empty x has a mask of its own dtype.
    """
    dtype, shape = dtype_of(input), shape_of(input)
    if 0 in shape:
        return input, b.constant(0, b.out[1][0], shape)
    if train is False:
        return input, b.constant(True, "i1", shape)
    compute = wide(dtype)
    keep, scale = keep_and_scale(b, p, compute)
    mask = chance(b, rng, b.broadcast_to(keep, shape))
    masked = b.mul(b.convert(input, compute), b.convert(mask, compute))
    return b.convert(b.mul(masked, b.broadcast_to(scale, shape)), dtype), mask


@rule(
    "aten.rrelu_with_noise.default",
    "aten.rrelu_with_noise_.default",
    "aten.rrelu_with_noise_functional.default",
    numbers=("lower", "upper"),
    random=True,
)
def rrelu_with_noise(
    b: Builder,
    self: SSAValue,
    noise: SSAValue,
    lower: Scalar,
    upper: Scalar,
    training: bool = False,
    generator: Any = None,
    *,
    rng: Rng,
) -> tuple[SSAValue, SSAValue]:
    """(result, noise): x where it is positive, else x r. Only in training is r random and the noise written."""
    dtype, shape = dtype_of(self), shape_of(self)
    compute = wide(dtype)
    low, high = number(b, lower, compute), number(b, upper, compute)
    x = b.convert(self, compute)
    positive = b.compare("GT", x, full(b, 0, x))
    if training:
        u = unit(b, rng, shape, compute)
        r = b.add(b.mul(u, b.broadcast_to(b.sub(high, low), shape)), b.broadcast_to(low, shape))
        slope = b.select(positive, full(b, 1, r), r)
        return b.convert(b.mul(x, slope), dtype), b.convert(slope, dtype_of(noise))
    mean = b.broadcast_to(b.div(b.add(low, high), b.constant(2, compute)), shape)
    return b.convert(b.select(positive, x, b.mul(x, mean)), dtype), noise
