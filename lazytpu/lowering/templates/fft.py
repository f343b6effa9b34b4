"""Discrete Fourier transforms over the last dimensions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from lazytpu.lowering.templates.registry import template


@template("fft")
def fft(x: jax.Array, *, kind: str, lengths: tuple[int, ...]) -> jax.Array:
    """The unnormalized transform of the last len(lengths) dimensions (1 to 3).

    `kind` is "fft" or "ifft" (complex to complex), "rfft" (real to complex, half of the last dimension) or "irfft" (its
    inverse; lengths[-1] is the length in the result). Inverse transforms are not divided by the number of elements.
    """
    scale = 1
    for length in lengths:
        scale *= length
    result = lax.fft(x, kind, lengths)
    if kind == "irfft":
        return result * jnp.asarray(scale, result.dtype)
    if kind == "ifft":  # by parts: a product with a complex number turns infinities into NaN, and -0.0 into 0.0
        factor = jnp.asarray(scale, result.real.dtype)
        return lax.complex(result.real * factor, result.imag * factor)
    return result
