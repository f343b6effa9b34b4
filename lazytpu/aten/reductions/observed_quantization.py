"""Fake quantization by a moving average of the extremes: torch.ao's observer and its quantizer in one op.

The scale and the zero point of a range are computed in f64 and f32 in the places where the CPU does so
(`ChooseQuantizationParams` in fbgemm/src/QuantUtils.cc): a rounding decides the zero point.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Literal

from lazytpu.aten.dims import front
from lazytpu.aten.pointwise.fake_quantize import OUT_OF_RANGE, by_channels, in_range, per_tensor_by_tensors
from lazytpu.aten.pointwise.operands import full, with_number
from lazytpu.aten.reductions.reduce import fold
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder

LEAST_SCALE = 6.1e-5  # `SMALL_SCALE_THRESHOLD`, an f32


def _averaged(b: Builder, running: SSAValue, current: SSAValue, share: SSAValue) -> SSAValue:
    """The next moving average; the first one is the current extreme, since the average starts at an infinity."""
    moved = b.add(running, b.mul(share, b.sub(current, running)))
    infinite = b.compare("EQ", b.abs(running), full(b, inf, running))
    return b.select(infinite, current, moved)


def _parameters(
    b: Builder, low: SSAValue, high: SSAValue, least: int, most: int, symmetric: bool
) -> tuple[SSAValue, SSAValue]:
    """The f32 scale and the f64 zero point for which the integers from `least` to `most` cover an f32 range. Of a range
    with infinities or NaN, the zero point is the least i32 number."""
    zero, wide = full(b, 0, low), partial(b.convert, dtype="f64")

    def spans() -> SSAValue:
        return b.and_(b.compare("LT", low, zero), b.compare("GT", high, zero))

    if symmetric:
        below, above = -((most - least) // 2 + 1), (most - least) // 2
        shares = [b.abs(b.div(x, full(b, n, x))) for x, n in ((low, below), (high, above))]
        largest = wide(b.max(shares[0], shares[1]))
        even = [b.convert(with_number(b, "mul", largest, n), "f32") for n in (below, above)]
        both = spans()
        low, high = b.select(both, even[0], low), b.select(both, even[1], high)
    low, high = b.min(low, zero), b.max(high, zero)
    width = most - least
    scale = b.convert(with_number(b, "div", b.sub(wide(high), wide(low)), width), "f32")
    inverse = b.div(full(b, 1, scale), scale)
    unusable = b.or_(b.compare("EQ", scale, zero), b.compare("EQ", b.abs(inverse), full(b, inf, inverse)))
    scale = b.select(unusable, full(b, 0.1, scale), scale)

    # A scale below the least one is raised, and the range with it.
    least_scale = full(b, LEAST_SCALE, low)
    small = b.compare("LT", scale, least_scale)
    amplifier, reach = b.div(least_scale, scale), with_number(b, "mul", least_scale, width)
    at_low, at_high = b.compare("EQ", low, zero), b.compare("EQ", high, zero)
    raised_high = b.select(at_low, reach, b.select(at_high, high, b.mul(high, amplifier)))
    raised_low = b.select(at_low, low, b.select(at_high, b.neg(reach), b.mul(low, amplifier)))
    low, high = b.select(small, raised_low, low), b.select(small, raised_high, high)
    scale = b.select(small, least_scale, scale)

    steps = [b.div(wide(x), wide(scale)) for x in (low, high)]
    guesses = [b.sub(full(b, n, s), s) for n, s in zip((least, most), steps, strict=True)]
    errors = [b.sub(full(b, abs(n), s), b.abs(s)) for n, s in zip((least, most), steps, strict=True)]
    point = b.select(b.compare("LT", errors[0], errors[1]), guesses[0], guesses[1])
    if symmetric:
        point = b.select(spans(), full(b, (least + most) / 2, point), point)
    point = b.unary("round_nearest_even", b.max(b.min(point, full(b, most, point)), full(b, least, point)))
    return scale, b.select(b.compare("EQ", point, point), point, full(b, -(2.0**31), point))


@rule("aten._fused_moving_avg_obs_fq_helper.default", numbers=("averaging_const",))
def moving_average(
    b: Builder,
    self: SSAValue,
    observer_on: SSAValue,
    fake_quant_on: SSAValue,
    running_min: SSAValue,
    running_max: SSAValue,
    scale: SSAValue,
    zero_point: SSAValue,
    averaging_const: Scalar,
    quant_min: int,
    quant_max: int,
    ch_axis: int,
    per_row_fake_quant: bool = False,
    symmetric_quant: bool = False,
) -> tuple[SSAValue, ...]:
    """(numbers, whether each is in range, new extremes, new scale, new zero point). Two tensors of one element switch
    the observation and the quantization on."""
    axis, rank = front(ch_axis, len(shape_of(self))), len(shape_of(self))
    dims = [d for d in range(rank) if d != axis] if per_row_fake_quant else list(range(rank))
    share = b.broadcast_to(b.scalar(averaging_const, "f32"), shape_of(running_min))
    observed, quantized = (_is_on(b, x) for x in (observer_on, fake_quant_on))

    def observe(kind: Literal["min", "max"], running: SSAValue) -> SSAValue:
        current = b.reshape(fold(b, kind, self, dims, False), shape_of(running))
        return b.select(_like(b, observed, running), _averaged(b, running, current, share), running)

    def quantize(new: SSAValue, old: SSAValue) -> SSAValue:
        return b.select(_like(b, quantized, old), b.reshape(b.convert(new, dtype_of(old)), shape_of(old)), old)

    low, high = observe("min", running_min), observe("max", running_max)
    new_scale, point = _parameters(b, low, high, quant_min, quant_max, symmetric_quant)
    scale, point = quantize(new_scale, scale), quantize(point, zero_point)
    if not per_row_fake_quant:
        on = b.reshape(b.convert(quantized, "f32"), (1,))
        result, inside = per_tensor_by_tensors(b, self, scale, point, on, quant_min, quant_max)
        return result, inside, low, high, scale, point
    usable = in_range(b, point, quant_min, quant_max)
    b.check(b.or_(usable, b.not_(_like(b, quantized, usable))), OUT_OF_RANGE, "RuntimeError")
    result, inside = by_channels(b, self, scale, point, axis, quant_min, quant_max)
    switch = _like(b, quantized, self)
    return b.select(switch, result, self), b.or_(b.not_(switch), inside), low, high, scale, point


def _is_on(b: Builder, switch: SSAValue) -> SSAValue:
    """Whether the only element of a tensor is not 0, as a 0-d value."""
    switch = b.reshape(b.convert(switch, "i64"), ())
    return b.compare("NE", switch, full(b, 0, switch))


def _like(b: Builder, condition: SSAValue, x: SSAValue) -> SSAValue:
    return b.broadcast_to(condition, shape_of(x))
