"""Resampling tables: the elements, with weights, that each upsampled element combines along one dimension.

Index arithmetic is in f32 as in ATen (`UpSample.h`, `UpSampleKernel.cpp`), or in f64 for tensors of f64 or bytes:
floors of rounded numbers select the elements, so the rounding must match.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np

from lazytpu.aten.indexing.tables import Table

Real = Any  # np.float32 or np.float64


def _scale(size: int, places: int, scale: float | None, align_corners: bool, real: Real) -> Any:
    """Elements per step (`area_pixel_compute_scale`), from the scale factor if given, else the ratio of the sizes."""
    if align_corners:
        return real(size - 1) / real(places - 1) if places > 1 else real(0)
    return real(1.0 / scale) if scale is not None and scale > 0 else real(size) / real(places)


def nearest(size: int, places: int, scale: float | None, exact: bool) -> Table:
    """The element at the start of each place, or at its centre if `exact` (`nearest_idx`, `nearest_exact_idx`)."""
    step = _scale(size, places, scale, False, np.float32)
    index = np.arange(places)
    if places == size:
        elements = index
    elif places == 2 * size and not exact:
        elements = index >> 1
    else:
        start = index.astype(np.float32) + np.float32(0.5 if exact else 0)
        elements = np.minimum(np.floor(start * step).astype(np.int64), size - 1)
    return Table.of(size, elements[:, None])


def _source(size: int, places: int, scale: float | None, align_corners: bool, real: Real) -> np.ndarray:
    """The coordinate of each place's centre, in elements; negative before the centre of the first."""
    step = _scale(size, places, scale, align_corners, real)
    index = np.arange(places).astype(real)
    return step * index if align_corners else step * (index + real(0.5)) - real(0.5)


def linear(size: int, places: int, scale: float | None, align_corners: bool, real: Real = np.float32) -> Table:
    """The two elements around each place (`compute_source_index_and_lambda`)."""
    if places == size:
        return Table.of(size, np.arange(size)[:, None])
    source = np.maximum(_source(size, places, scale, align_corners, real), real(0))
    first = np.minimum(source.astype(np.int64), size - 1)
    fraction = np.clip(source - first.astype(real), real(0), real(1))
    pair = np.stack([first, np.minimum(first + 1, size - 1)], 1)
    return Table.of(size, pair, np.stack([real(1) - fraction, fraction], 1))


def cubic(size: int, places: int, scale: float | None, align_corners: bool, real: Real = np.float32) -> Table:
    """The four elements around each place, by Keys' kernel with a = -3/4; those outside are copies of the edge."""
    if places == size:
        return Table.of(size, np.arange(size)[:, None])
    source = _source(size, places, scale, align_corners, real)
    first = np.floor(source)
    fraction = np.clip(source - first, real(0), real(1))
    elements = first.astype(np.int64)[:, None] + np.arange(-1, 3)
    rest = 1 - fraction
    weights = [_keys_outer(fraction + 1), _keys_inner(fraction), _keys_inner(rest), _keys_outer(rest + 1)]
    return Table.of(size, np.clip(elements, 0, size - 1), np.stack(weights, 1))


def _keys_inner(x: np.ndarray, a: float = -0.75) -> np.ndarray:
    """Keys' cubic convolution kernel at distances up to 1 (IEEE Trans. ASSP 29, 1981; `cubic_convolution1`)."""
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _keys_outer(x: np.ndarray, a: float = -0.75) -> np.ndarray:
    """The kernel at distances from 1 to 2 (`cubic_convolution2`, with its roundings)."""
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _keys(x: np.ndarray) -> np.ndarray:
    """The kernel with a = -1/2, as antialiasing rounds it (`bicubic_filter`)."""
    outer = (((x - 5) * x + 8) * x - 4) * -0.5
    return np.where(x < 1, _keys_inner(x, -0.5), np.where(x < 2, outer, 0))


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - x, 0)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0)


# Antialiasing filters: kernel and support, in elements.
FILTERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "bilinear": (_triangle, 1),
    "bicubic": (_keys, 2),
    "lanczos": (_lanczos, 3),
}


def antialiased(
    size: int, places: int, scale: float | None, align_corners: bool, kind: str, real: Real = np.float32
) -> Table:
    """Elements under a filter as wide as the step between places, with weights that sum to 1
    (`_compute_indices_weights_aa`)."""
    kernel, reach = FILTERS[kind]
    step = float(_scale(size, places, scale, align_corners, real))
    support, shrink = reach * max(step, 1.0), 1 / max(step, 1.0)
    members: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for place in range(places):
        centre = step * (place + 0.5)
        low = max(int(centre - support + 0.5), 0)
        high = min(int(centre + support + 0.5), size, low + ceil(support) * 2 + 1)
        member = np.arange(low, max(high, low))
        weight = kernel(np.abs((member - centre + 0.5) * shrink))
        members.append(member)
        weights.append(weight / weight.sum() if weight.sum() else weight)
    return Table.ragged(size, members, weights)
