"""Upsampling by nearest, linear, cubic and antialiasing filters, and the gradients.

All are weighted sums of few elements, one dimension after the other; gradients are the transposed sums. Where the size
grows by a whole factor, places that far apart follow the same formula: they are computed together from shifted slices,
then interleaved. Doubling 16 x 64 x 32 x 32 bilinearly takes 3 ms on a busy XLA:CPU (24 by gather, 89 by matrix
products), and 28 us by libtpu's estimate for v6e (66, 68).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lazytpu.aten.images import resampling
from lazytpu.aten.indexing.tables import DENSE, Table, gathered
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.registry import rule
from lazytpu.aten.shape.padding import part
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

    Phases = tuple[np.ndarray, np.ndarray]


def phases(table: Table) -> Phases | None:
    """(offsets, weights), both [factor, taps], of a table whose size grows by a whole factor, else None.

    Place o combines the elements o // factor + offsets[o % factor]; those outside are copies of the edge.
    """
    places = len(table.elements)
    factor = places // table.size
    if factor < 2 or places % table.size or places * table.size > DENSE or not table.real.all():
        return None
    middle = table.size // 2
    block = slice(middle * factor, (middle + 1) * factor)
    offsets, weights = table.elements[block] - middle, table.weights[block]
    index = np.arange(places)
    elements = np.clip((index // factor)[:, None] + offsets[index % factor], 0, table.size - 1)
    candidate = Table.of(table.size, elements, weights[index % factor])
    matches = np.allclose(candidate.dense(), table.dense(), rtol=0, atol=1e-5)
    return (offsets, weights) if matches else None


def _scaled(b: Builder, x: SSAValue, weight: float) -> SSAValue:
    return x if weight == 1 else b.mul(x, full(b, weight, x))


def _interleaved(b: Builder, x: SSAValue, pattern: Phases, dim: int) -> SSAValue:
    """Apply a table with phases along one dimension."""
    offsets, weights = pattern
    shape, (factor, taps) = shape_of(x), offsets.shape
    size = shape[dim]
    if taps == 1 and not offsets.any():
        dims = [d + (d > dim) for d in range(len(shape))]
        repeated = b.broadcast_in_dim(x, (*shape[: dim + 1], factor, *shape[dim + 1 :]), dims)
        return b.reshape(repeated, (*shape[:dim], size * factor, *shape[dim + 1 :]))
    below, above = max(-int(offsets.min()), 0), max(int(offsets.max()), 0)
    edges = [part(b, x, dim, 0, 1)] * below + [x] + [part(b, x, dim, size - 1, size)] * above
    padded = b.concatenate(edges, dim)
    columns: list[SSAValue] = []
    for phase in range(factor):
        total: SSAValue | None = None
        for offset, weight in zip(offsets[phase].tolist(), weights[phase].tolist(), strict=True):
            term = _scaled(b, part(b, padded, dim, below + offset, below + offset + size), weight)
            total = term if total is None else b.add(total, term)
        assert total is not None
        columns.append(b.reshape(total, (*shape[: dim + 1], 1, *shape[dim + 1 :])))
    return b.reshape(b.concatenate(columns, dim + 1), (*shape[:dim], size * factor, *shape[dim + 1 :]))


def _collected(b: Builder, grad: SSAValue, pattern: Phases, dim: int) -> SSAValue:
    """The adjoint of `_interleaved`."""
    offsets, weights = pattern
    shape, (factor, taps) = shape_of(grad), offsets.shape
    size = shape[dim] // factor
    paired = b.reshape(grad, (*shape[:dim], size, factor, *shape[dim + 1 :]))
    if taps == 1 and not offsets.any():
        return b.reduce("add", paired, [dim + 1])
    below, above = max(-int(offsets.min()), 0), max(int(offsets.max()), 0)
    rank, single = len(shape), (*shape[:dim], size, *shape[dim + 1 :])
    zero = b.constant(0, dtype_of(grad))
    total: SSAValue | None = None
    for phase in range(factor):
        phase_grad = b.reshape(part(b, paired, dim + 1, phase, phase + 1), single)
        for offset, weight in zip(offsets[phase].tolist(), weights[phase].tolist(), strict=True):
            low = [below + offset if d == dim else 0 for d in range(rank)]
            high = [above - offset if d == dim else 0 for d in range(rank)]
            term = b.pad(_scaled(b, phase_grad, weight), zero, low, high)
            total = term if total is None else b.add(total, term)
    assert total is not None
    return _edges_folded(b, total, dim, below, above)


def _edges_folded(b: Builder, x: SSAValue, dim: int, below: int, above: int) -> SSAValue:
    """`x` without the margins `below` and `above`, whose sums are added to the first and the last element."""
    size, rank = shape_of(x)[dim], len(shape_of(x))
    zero, inside = b.constant(0, dtype_of(x)), part(b, x, dim, below, size - above)
    beyond = size - above - below - 1
    if below:
        first = b.reduce("add", part(b, x, dim, 0, below), [dim], keepdim=True)
        inside = b.add(inside, b.pad(first, zero, [0] * rank, [beyond if d == dim else 0 for d in range(rank)]))
    if above:
        last = b.reduce("add", part(b, x, dim, size - above, size), [dim], keepdim=True)
        inside = b.add(inside, b.pad(last, zero, [beyond if d == dim else 0 for d in range(rank)], [0] * rank))
    return inside


def _forward(b: Builder, x: SSAValue, table: Table, dim: int) -> SSAValue:
    pattern = phases(table)
    return gathered(b, x, table, dim) if pattern is None else _interleaved(b, x, pattern, dim)


def _backward(b: Builder, grad: SSAValue, table: Table, dim: int) -> SSAValue:
    pattern = phases(table)
    return gathered(b, grad, table.adjoint(), dim) if pattern is None else _collected(b, grad, pattern, dim)


def _is_identity(table: Table) -> bool:
    elements = table.elements
    return elements.shape == (table.size, 1) and bool((elements[:, 0] == np.arange(table.size)).all())


def _in_bytes(b: Builder, x: SSAValue, table: Table, dim: int) -> SSAValue:
    """The CPU's sums of bytes: weights in fixed point, as precise as 15 bits for the largest allow, and rounded to
    bytes after each dimension (`_compute_index_ranges_int16_weights` in UpSampleKernel.cpp)."""
    table = table.merged()
    bits = 0
    while bits < 22 and int(0.5 + float(table.weights.max()) * (2 << bits)) < 1 << 15:
        bits += 1
    fixed = np.trunc(table.weights * (1 << bits) + np.copysign(0.5, table.weights))
    total = gathered(b, b.convert(x, "i32"), replace(table, weights=np.where(table.real, fixed, 0)), dim)
    rounded = b.add(total, full(b, 1 << bits >> 1, total))
    shifted = b.binary("shift_right_arithmetic", rounded, full(b, bits, rounded))
    return b.convert(b.clamp(b.constant(0, "i32"), shifted, b.constant(255, "i32")), "ui8")


def _resampled(
    b: Builder, x: SSAValue, tables: Sequence[Table], dtype: str, apply: Callable[..., SSAValue]
) -> SSAValue:
    """Apply one table to each of the last dimensions; f16 and bf16 are computed in f32."""
    first = len(shape_of(x)) - len(tables)
    weighted = any((t.weights != 1).any() or t.elements.shape[1] > 1 for t in tables)
    apply = _in_bytes if dtype == "ui8" and weighted else apply
    x = b.convert(x, wide(dtype))
    for i, table in reversed(list(enumerate(tables))):
        x = x if _is_identity(table) else apply(b, x, table, first + i)
    return b.convert(x, dtype)


Tables = Callable[[int, int, "float | None", bool, Any], Table]


def _tables(
    make: Tables, size: Sequence[int], places: Sequence[int], scales: Sequence[float | None], align: bool, dtype: str
) -> list[Table]:
    real = np.float64 if dtype in ("f64", "ui8") else np.float32
    return [make(n, o, s, align, real) for n, o, s in zip(size, places, scales, strict=True)]


def _scales(rank: int, arguments: dict[str, Any]) -> list[float | None]:
    """The scale factors of an op, whose names vary by overload."""
    if arguments.get("scale_factors") is not None:
        return list(arguments["scale_factors"])
    if "scales" in arguments:
        return [arguments["scales"]]
    return [arguments.get(name) for name in ("scales_d", "scales_h", "scales_w")[3 - rank :]]


def _register(stem: str, rank: int, make: Tables) -> None:
    """The rules of one family: the op, its `vec` overload, which takes factors in place of a size, and the gradient."""

    def forward(b: Builder, **arguments: Any) -> SSAValue:
        x = arguments["input"] if "input" in arguments else arguments["self"]
        dtype, shape = b.out[0]
        if 0 in shape:
            return b.constant(0, dtype, shape)
        align = bool(arguments.get("align_corners", False))
        tables = _tables(make, shape_of(x)[-rank:], shape[-rank:], _scales(rank, arguments), align, dtype)
        return _resampled(b, x, tables, dtype, _forward)

    def backward(b: Builder, grad_output: SSAValue, input_size: list[int], **arguments: Any) -> SSAValue:
        dtype, places = dtype_of(grad_output), shape_of(grad_output)[-rank:]
        if 0 in input_size:
            return b.constant(0, dtype, input_size)
        align = bool(arguments.get("align_corners", False))
        tables = _tables(make, input_size[-rank:], places, _scales(rank, arguments), align, dtype)
        gradient = _resampled(b, grad_output, tables, dtype, _backward)
        zero = full(b, 0, gradient)  # sums of the CPU begin with 0.0
        return b.select(b.compare("EQ", gradient, zero), zero, gradient)

    rule(f"aten.{stem}.default", f"aten.{stem}.vec")(forward)
    rule(f"aten.{stem}_backward.default")(backward)


def _nearest(exact: bool) -> Tables:
    return lambda size, places, scale, align, real: resampling.nearest(size, places, scale, exact)


def _antialiased(kind: str) -> Tables:
    return lambda size, places, scale, align, real: resampling.antialiased(size, places, scale, align, kind, real)


for _rank in (1, 2, 3):
    _register(f"upsample_nearest{_rank}d", _rank, _nearest(False))
    _register(f"_upsample_nearest_exact{_rank}d", _rank, _nearest(True))
_register("upsample_linear1d", 1, resampling.linear)
_register("upsample_bilinear2d", 2, resampling.linear)
_register("upsample_trilinear3d", 3, resampling.linear)
_register("upsample_bicubic2d", 2, resampling.cubic)
for _kind in resampling.FILTERS:
    _register(f"_upsample_{_kind}2d_aa", 2, _antialiased(_kind))
