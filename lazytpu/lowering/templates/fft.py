"""Discrete Fourier transforms over the last dimensions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

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
    result = jax.lax.fft(x, kind, lengths)
    return result * jnp.asarray(scale, result.real.dtype) if kind in ("ifft", "irfft") else result
