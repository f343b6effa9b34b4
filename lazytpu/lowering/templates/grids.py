"""Sampling of images and volumes at given places (`grid_sampler`), and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from lazytpu.lowering.templates.registry import template

CUBIC_A = -0.75  # of Keys' kernel, as in ATen/native/UpSample.h


@template("grid_sampler")
def grid_sampler(x: jax.Array, grid: jax.Array, *, mode: str, padding: str, align_corners: bool) -> jax.Array:
    """x [N, C, …] at the places grid [N, places…, dims], whose last dimension counts from the last spatial dimension
    and whose numbers go from -1 to 1 across x: [N, C, places…]. `mode` is "bilinear", "nearest" or "bicubic",
    `padding` is "zeros", "border" or "reflection" (ATen/native/GridSamplerUtils.h)."""
    return _sample(x, grid, mode, padding, align_corners)


@template("grid_sampler_backward")
def grid_sampler_backward(
    grad: jax.Array, x: jax.Array, grid: jax.Array, *, mode: str, padding: str, align_corners: bool, of_input: bool
) -> tuple[jax.Array, ...]:
    """The gradients of grid, and of x when `of_input`."""

    def forward(grid: jax.Array, x: jax.Array) -> jax.Array:
        return _sample(x, grid, mode, padding, align_corners)

    if of_input:
        return jax.vjp(forward, grid, x)[1](grad)
    return jax.vjp(lambda grid: forward(grid, x), grid)[1](grad)


def _sample(x: jax.Array, grid: jax.Array, mode: str, padding: str, align_corners: bool) -> jax.Array:
    sizes = x.shape[2:]
    places = [_unnormalised(grid[..., len(sizes) - 1 - dim], size, align_corners) for dim, size in enumerate(sizes)]
    if mode == "bicubic":
        return _bicubic(x, places, padding, align_corners)
    places = [_inside(p, size, padding, align_corners) for p, size in zip(places, sizes, strict=True)]
    if mode == "nearest":
        return _element(x, [jnp.rint(p) for p in places])
    floors = [jnp.floor(jax.lax.stop_gradient(p)) for p in places]
    parts = [p - f for p, f in zip(places, floors, strict=True)]
    total: Any = 0
    for corner in product((0, 1), repeat=len(sizes)):
        weight: Any = 1
        for part, upper in zip(parts, corner, strict=True):
            weight = weight * (part if upper else 1 - part)
        corner_places = [f + upper for f, upper in zip(floors, corner, strict=True)]
        total = total + _element(x, corner_places) * weight[:, None]
    return total


def _unnormalised(place: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """From -1 … 1 to 0 … size - 1: these are the centres of the outer elements, or else the outer edges."""
    return (place + 1) / 2 * (size - 1) if align_corners else ((place + 1) * size - 1) / 2


def _inside(place: jax.Array, size: int, padding: str, align_corners: bool) -> jax.Array:
    """Places outside moved to the border, or mirrored at it. On the border the derivative is 0, as in ATen."""
    if padding == "reflection":
        place = _mirrored(place, 0, 2 * (size - 1)) if align_corners else _mirrored(place, -1, 2 * size - 1)
    if padding != "zeros":
        place = jnp.where(place <= 0, 0, jnp.where(place >= size - 1, size - 1, place))
    return place


def _mirrored(place: jax.Array, twice_low: int, twice_high: int) -> jax.Array:
    """Reflected until it is between two bounds (given doubled)."""
    if twice_low == twice_high:
        return jnp.zeros_like(place)
    low, span = twice_low / 2, (twice_high - twice_low) / 2
    away = jnp.where(place < low, low - place, place - low)
    turns = jnp.floor(jax.lax.stop_gradient(away) / span)
    rest = away - turns * span
    return jnp.where(turns % 2 == 0, rest + low, span - rest + low)


def _element(x: jax.Array, places: Sequence[jax.Array]) -> jax.Array:
    """The elements at whole places, 0 outside: [N, C, places…]."""
    sizes, batch = x.shape[2:], x.shape[0]
    flat, valid = jnp.zeros(places[0].shape, jnp.int32), jnp.ones(places[0].shape, bool)
    for place, size in zip(places, sizes, strict=True):
        valid &= (place >= 0) & (place <= size - 1)
        flat = flat * size + jnp.clip(place, 0, size - 1).astype(jnp.int32)
    planes = x.reshape(batch, x.shape[1], -1)
    taken = jnp.take_along_axis(planes, flat.reshape(batch, 1, -1), 2).reshape(*x.shape[:2], *flat.shape[1:])
    return jnp.where(valid[:, None], taken, 0)


def _bicubic(x: jax.Array, places: Sequence[jax.Array], padding: str, align_corners: bool) -> jax.Array:
    """Sixteen elements around each place, each of them moved inside by itself."""
    sizes = x.shape[2:]
    floors = [jnp.floor(jax.lax.stop_gradient(p)) for p in places]
    weights = [_keys(p - f) for p, f in zip(places, floors, strict=True)]
    total: Any = 0
    for taps in product(range(4), repeat=2):
        moved = [
            _inside(f + tap - 1, size, padding, align_corners) for f, tap, size in zip(floors, taps, sizes, strict=True)
        ]
        weight = weights[0][taps[0]] * weights[1][taps[1]]
        total = total + _element(x, moved) * weight[:, None]
    return total


def _keys(part: jax.Array) -> list[jax.Array]:
    """Keys' cubic kernel at the four elements around a place."""

    def near(d: jax.Array) -> jax.Array:
        return ((CUBIC_A + 2) * d - (CUBIC_A + 3)) * d * d + 1

    def far(d: jax.Array) -> jax.Array:
        return ((CUBIC_A * d - 5 * CUBIC_A) * d + 8 * CUBIC_A) * d - 4 * CUBIC_A

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]
