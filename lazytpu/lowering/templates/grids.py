"""Sampling of images and volumes at the points of a grid (`grid_sampler`), and its gradients."""

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
    """x [N, C, …] at the points of grid [N, points…, dims]: [N, C, points…]. The coordinates of a point, -1 to 1 across
    x, start with the last spatial dimension. `mode` is "bilinear", "nearest" or "bicubic", `padding` is "zeros",
    "border" or "reflection" (ATen/native/GridSamplerUtils.h)."""
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
    points = [_unnormalized(grid[..., len(sizes) - 1 - dim], size, align_corners) for dim, size in enumerate(sizes)]
    if mode == "bicubic":
        return _bicubic(x, points, padding, align_corners)
    points = [_inside(p, size, padding, align_corners) for p, size in zip(points, sizes, strict=True)]
    if mode == "nearest":
        return _element(x, [jnp.rint(p) for p in points])
    floors = [jnp.floor(jax.lax.stop_gradient(p)) for p in points]
    fractions = [p - f for p, f in zip(points, floors, strict=True)]
    total: Any = 0
    for corner in product((0, 1), repeat=len(sizes)):
        weight: Any = 1
        for fraction, upper in zip(fractions, corner, strict=True):
            weight = weight * (fraction if upper else 1 - fraction)
        corner_points = [f + upper for f, upper in zip(floors, corner, strict=True)]
        total = total + _element(x, corner_points) * weight[:, None]
    return total


def _unnormalized(x: jax.Array, size: int, align_corners: bool) -> jax.Array:
    """Coordinates -1 … 1 as 0 … size - 1. -1 and 1 are the centers of the outer elements with `align_corners`, else
    their outer edges."""
    return (x + 1) / 2 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2


def _inside(x: jax.Array, size: int, padding: str, align_corners: bool) -> jax.Array:
    """Coordinates out of bounds, clamped to the border or reflected at it. On the border the derivative is 0, as in
    ATen."""
    if padding == "reflection":
        x = _mirrored(x, 0, 2 * (size - 1)) if align_corners else _mirrored(x, -1, 2 * size - 1)
    if padding != "zeros":
        x = jnp.where(x <= 0, 0, jnp.where(x >= size - 1, size - 1, x))
    return x


def _mirrored(x: jax.Array, twice_low: int, twice_high: int) -> jax.Array:
    """Coordinates reflected into the range between two bounds, which are given doubled."""
    if twice_low == twice_high:
        return jnp.zeros_like(x)
    low, span = twice_low / 2, (twice_high - twice_low) / 2
    away = jnp.where(x < low, low - x, x - low)
    turns = jnp.floor(jax.lax.stop_gradient(away) / span)
    remainder = away - turns * span
    return jnp.where(turns % 2 == 0, remainder + low, span - remainder + low)


def _element(x: jax.Array, points: Sequence[jax.Array]) -> jax.Array:
    """The elements at integer coordinates, 0 out of bounds: [N, C, points…]."""
    sizes, batch = x.shape[2:], x.shape[0]
    flat, valid = jnp.zeros(points[0].shape, jnp.int32), jnp.ones(points[0].shape, bool)
    for point, size in zip(points, sizes, strict=True):
        valid &= (point >= 0) & (point <= size - 1)
        flat = flat * size + jnp.clip(point, 0, size - 1).astype(jnp.int32)
    planes = x.reshape(batch, x.shape[1], -1)
    elements = jnp.take_along_axis(planes, flat.reshape(batch, 1, -1), 2).reshape(*x.shape[:2], *flat.shape[1:])
    return jnp.where(valid[:, None], elements, 0)


def _bicubic(x: jax.Array, points: Sequence[jax.Array], padding: str, align_corners: bool) -> jax.Array:
    """Bicubic interpolation of the sixteen elements around each point; padding applies to each of them separately."""
    sizes = x.shape[2:]
    floors = [jnp.floor(jax.lax.stop_gradient(p)) for p in points]
    weights = [_keys(p - f) for p, f in zip(points, floors, strict=True)]
    total: Any = 0
    for taps in product(range(4), repeat=2):
        moved = [
            _inside(f + tap - 1, size, padding, align_corners) for f, tap, size in zip(floors, taps, sizes, strict=True)
        ]
        weight = weights[0][taps[0]] * weights[1][taps[1]]
        total = total + _element(x, moved) * weight[:, None]
    return total


def _keys(part: jax.Array) -> list[jax.Array]:
    """The weights of Keys' cubic kernel for the four elements around a point."""

    def near(d: jax.Array) -> jax.Array:
        return ((CUBIC_A + 2) * d - (CUBIC_A + 3)) * d * d + 1

    def far(d: jax.Array) -> jax.Array:
        return ((CUBIC_A * d - 5 * CUBIC_A) * d + 8 * CUBIC_A) * d - 4 * CUBIC_A

    return [far(part + 1), near(part), near(1 - part), far(2 - part)]
