"""Activation functions, with the formulas of ATen/native/cpu/Activation.cpp."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import (
    Operand,
    finish,
    full,
    operands,
    pointwise,
    stored,
    wide,
    with_number,
    within_dtype,
)
from lazytpu.aten.registry import rule
from lazytpu.aten.scalars import Scalar
from lazytpu.by_release import ROUNDS_SOFTSHRINK
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

ONE, MINUS_ONE = Scalar("int", 1), Scalar("int", -1)
KAPPA = 0.044715  # the cubic term of the tanh approximation of gelu (https://arxiv.org/abs/1606.08415)


@pointwise("aten.relu.default", halves="own")
def relu(b: Builder, self: SSAValue) -> SSAValue:
    """max(x, 0)."""
    return b.max(self, full(b, 0, self))


@rule("aten.hardtanh.default", numbers=("min_val", "max_val"))
def hardtanh(b: Builder, self: SSAValue, min_val: Operand = MINUS_ONE, max_val: Operand = ONE) -> SSAValue:
    """x between min_val and max_val; relu6 is hardtanh(x, 0, 6)."""
    common = dtype_of(self)
    bounds = [within_dtype(b, bound, common) for bound in (min_val, max_val)]
    x, low, high = operands(b, self, *bounds, common=common, halves="own")
    return finish(b, b.min(b.max(x, low), high))


@pointwise("aten.threshold.default", rounded=False)
def threshold(b: Builder, self: SSAValue, *, threshold: SSAValue, value: SSAValue) -> SSAValue:
    """value where x <= threshold, else x."""
    return b.select(b.compare("LE", self, threshold), value, self)


@pointwise("aten.leaky_relu.default", rounded=False)
def leaky_relu(b: Builder, self: SSAValue, *, negative_slope: SSAValue) -> SSAValue:
    """x where positive, else negative_slope * x."""
    return b.select(b.compare("GT", self, full(b, 0, self)), self, b.mul(self, negative_slope))


@pointwise("aten._prelu_kernel.default")
def prelu(b: Builder, self: SSAValue, weight: SSAValue) -> SSAValue:
    """x where positive, else weight * x."""
    return b.select(b.compare("GT", self, full(b, 0, self)), self, b.mul(weight, self))


@pointwise("aten.elu.default", rounded=False)
def elu(b: Builder, self: SSAValue, *, alpha: SSAValue, scale: SSAValue, input_scale: SSAValue) -> SSAValue:
    """scale * x where x >= 0, else alpha * scale * expm1(input_scale * x)."""
    negative = b.mul(b.unary("expm1", b.mul(self, input_scale)), b.mul(alpha, scale))
    return b.select(b.compare("LT", self, full(b, 0, self)), negative, b.mul(self, scale))


@pointwise("aten.celu.default", rounded=False)
def celu(b: Builder, self: SSAValue, *, alpha: SSAValue) -> SSAValue:
    """elu(x, alpha, 1, 1 / alpha)."""
    one = full(b, 1, alpha)
    return elu(b, self, alpha=alpha, scale=one, input_scale=b.div(one, alpha))


@pointwise("aten.gelu.default", options=("approximate",))
def gelu(b: Builder, self: SSAValue, *, approximate: str) -> SSAValue:
    """x times the normal CDF at x, exactly or approximated by tanh."""
    half = with_number(b, "mul", self, 0.5)
    if approximate == "tanh":
        return b.mul(half, with_number(b, "add", b.unary("tanh", gelu_inner(b, self)), 1.0))
    scaled = with_number(b, "mul", self, math.sqrt(0.5))
    return b.mul(half, with_number(b, "add", b.unary("erf", scaled), 1.0))


def gelu_inner(b: Builder, x: SSAValue) -> SSAValue:
    """sqrt(2 / pi) * (x + 0.044715 x^3)."""
    cube = b.mul(b.mul(x, x), x)
    return with_number(b, "mul", b.add(x, with_number(b, "mul", cube, KAPPA)), math.sqrt(2 / math.pi))


@pointwise("aten.silu.default")
def silu(b: Builder, self: SSAValue) -> SSAValue:
    """x / (1 + e^-x)."""
    return b.mul(self, b.unary("logistic", self))


@pointwise("aten.mish.default")
def mish(b: Builder, self: SSAValue) -> SSAValue:
    """x * tanh(log1p(e^x))."""
    return b.mul(self, b.unary("tanh", b.unary("log1p", b.exp(self))))


def ramp(b: Builder, x: SSAValue) -> SSAValue:
    """min(max(x + 3, 0), 6)."""
    shifted = with_number(b, "add", x, 3)
    return with_number(b, "min", with_number(b, "max", shifted, 0), 6)


@pointwise("aten.hardsigmoid.default")
def hardsigmoid(b: Builder, self: SSAValue) -> SSAValue:
    """min(max(x + 3, 0), 6) / 6."""
    return with_number(b, "div", ramp(b, self), 6)


@pointwise("aten.hardswish.default")
def hardswish(b: Builder, self: SSAValue) -> SSAValue:
    """x * min(max(x + 3, 0), 6) / 6."""
    return with_number(b, "div", b.mul(self, ramp(b, self)), 6)


def within(b: Builder, x: SSAValue, low: SSAValue, high: SSAValue) -> SSAValue:
    """low <= x <= high."""
    return b.and_(b.compare("GE", x, low), b.compare("LE", x, high))


@pointwise("aten.hardshrink.default", halves="own")
def hardshrink(b: Builder, self: SSAValue, *, lambd: SSAValue) -> SSAValue:
    """0 where |x| <= lambd, else x."""
    return b.select(within(b, self, b.neg(lambd), lambd), full(b, 0, self), self)


@pointwise("aten.softshrink.default", rounded=ROUNDS_SOFTSHRINK)
def softshrink(b: Builder, self: SSAValue, *, lambd: SSAValue) -> SSAValue:
    """x moved towards 0 by lambd; 0 where |x| <= lambd, and NaN stays."""
    moved = b.select(b.compare("LT", self, b.neg(lambd)), b.add(self, lambd), b.sub(self, lambd))
    return b.select(within(b, self, b.neg(lambd), lambd), full(b, 0, self), moved)


@pointwise("aten.softplus.default", rounded=False)
def softplus(b: Builder, self: SSAValue, *, beta: SSAValue, threshold: SSAValue) -> SSAValue:
    """log1p(e^(beta x)) / beta, and x where beta x > threshold."""
    scaled = b.mul(self, beta)
    return b.select(b.compare("GT", scaled, threshold), self, b.div(b.unary("log1p", b.exp(scaled)), beta))


def decay(b: Builder, x: SSAValue) -> SSAValue:
    """e^-|x|."""
    return b.exp(b.neg(b.abs(x)))


@rule("aten.log_sigmoid_forward.default")
def log_sigmoid_forward(b: Builder, self: SSAValue) -> tuple[SSAValue, SSAValue]:
    """min(x, 0) - log1p(e^-|x|), and e^-|x| for the backward."""
    (x,) = operands(b, self, common=dtype_of(self))
    exponential = decay(b, x)
    output = b.sub(b.min(x, full(b, 0, x)), b.unary("log1p", exponential))
    dtype, shape = b.out[1]
    buffer = b.convert(exponential, dtype) if shape == shape_of(exponential) else b.constant(0, dtype, shape)
    return finish(b, output), buffer


@rule("aten.glu.default")
def glu(b: Builder, self: SSAValue, dim: int) -> SSAValue:
    """The first half along dim times the logistic function of the second."""
    first, second = halve(b, b.convert(self, wide(dtype_of(self))), dim)
    return finish(b, b.mul(first, b.unary("logistic", second)))


def halve(b: Builder, x: SSAValue, dim: int) -> tuple[SSAValue, SSAValue]:
    """Both halves of x along dim."""
    shape = shape_of(x)
    dim %= len(shape)
    middle = shape[dim] // 2
    starts, limits = [0] * len(shape), list(shape)
    limits[dim] = middle
    first = b.slice(x, starts, limits)
    starts[dim], limits[dim] = middle, shape[dim]
    return first, b.slice(x, starts, limits)


@pointwise("aten.logit.default", floating=True)
def logit(b: Builder, self: SSAValue, *, eps: SSAValue | None) -> SSAValue:
    """log(x / (1 - x)), with x first clamped to [eps, 1 - eps] if eps is given; both bounds in the tensor's dtype."""
    one = full(b, 1, self)
    x = self if eps is None else b.min(b.max(self, eps), stored(b, b.sub(one, eps)))
    return b.log(b.div(x, b.sub(one, x)))
