"""Hashes of tensors, from the bits of their elements as doubles."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from lazytpu.lowering.templates.registry import template


@template("hash_tensor")
def hash_tensor(x: jax.Array, *, dims: Sequence[int]) -> jax.Array:
    """Exclusive or (ui64) over `dims`, of the bits of floats converted to f64 and of integers widened to 64 bits
    (`XorSumOps` in ReduceOpsKernel.cpp)."""
    if x.dtype == jnp.float64:
        bits = lax.bitcast_convert_type(x, jnp.uint64)
    elif jnp.issubdtype(x.dtype, jnp.floating):
        bits = _as_double(x)
    else:
        bits = x.astype(jnp.int64).astype(jnp.uint64) if x.dtype != jnp.uint64 else x
    return lax.reduce(bits, jnp.uint64(0), lax.bitwise_xor, tuple(dims))


def _as_double(x: jax.Array) -> jax.Array:
    """The bits of f32, bf16 and f16 as f64, by integer arithmetic: XLA flushes subnormal numbers to zero, torch does
    not."""
    if x.dtype == jnp.bfloat16:
        bits = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32) << 16
    else:
        bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    bits = bits.astype(jnp.uint64)
    sign, exponent, fraction = bits >> 31, (bits >> 23) & 0xFF, bits & 0x7FFFFF
    shift = lax.clz(fraction) - 40  # distance of the leading bit of a subnormal's fraction from the hidden bit
    small = ((897 - shift) << 52) | (((fraction << shift) & 0x7FFFFF) << 29)
    small = jnp.where(fraction == 0, 0, small)
    quiet = jnp.where(fraction == 0, 0, fraction | 0x400000)  # conversions make every NaN quiet
    special = (jnp.uint64(0x7FF) << 52) | (quiet << 29)
    normal = ((exponent + 896) << 52) | (fraction << 29)
    value = jnp.where(exponent == 0, small, jnp.where(exponent == 0xFF, special, normal))
    return (sign << 63) | value
