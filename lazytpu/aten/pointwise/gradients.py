"""Gradients of activation functions, with the formulas of ATen/native/cpu/Activation.cpp and BinaryOpsKernel.cpp."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.activations import KAPPA, decay, gelu_inner, halve
from lazytpu.aten.pointwise.complex import conjugate
from lazytpu.aten.pointwise.operands import finish, full, operands, pointwise, stored, wide, with_number
from lazytpu.aten.promotion import promote
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, is_integer, shape_of

SIXTH = 0.1666666716337204  # 1.0f / 6.0f: single precision in the CPU kernel, even for doubles

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def _one_minus(b: Builder, x: SSAValue) -> SSAValue:
    return b.sub(full(b, 1, x), x)


@pointwise("aten.sigmoid_backward.default")
def sigmoid_backward(b: Builder, grad_output: SSAValue, output: SSAValue) -> SSAValue:
    """g (1 - y) y."""
    return b.mul(grad_output, conjugate(b, b.mul(_one_minus(b, output), output)))


@pointwise("aten.tanh_backward.default")
def tanh_backward(b: Builder, grad_output: SSAValue, output: SSAValue) -> SSAValue:
    """g (1 - y^2)."""
    return b.mul(grad_output, conjugate(b, _one_minus(b, b.mul(output, output))))


@pointwise("aten.threshold_backward.default", rounded=False)
def threshold_backward(b: Builder, grad_output: SSAValue, self: SSAValue, *, threshold: SSAValue) -> SSAValue:
    """0 where x <= threshold, else g."""
    return b.select(b.compare("LE", self, threshold), full(b, 0, grad_output), grad_output)


@pointwise("aten.hardtanh_backward.default", rounded=False)
def hardtanh_backward(
    b: Builder, grad_output: SSAValue, self: SSAValue, *, min_val: SSAValue, max_val: SSAValue
) -> SSAValue:
    """g where min_val < x < max_val."""
    inside = b.and_(b.compare("GT", self, min_val), b.compare("LT", self, max_val))
    return b.select(inside, grad_output, full(b, 0, grad_output))


@pointwise("aten.leaky_relu_backward.default", rounded=False, options=("self_is_result",))
def leaky_relu_backward(
    b: Builder, grad_output: SSAValue, self: SSAValue, *, negative_slope: SSAValue, self_is_result: bool
) -> SSAValue:
    """g where x > 0, else g * negative_slope. x may be the result, which has the same sign."""
    positive = b.compare("GT", self, full(b, 0, self))
    return b.select(positive, grad_output, b.mul(grad_output, negative_slope))


@rule("aten._prelu_kernel_backward.default")
def prelu_backward(b: Builder, grad_output: SSAValue, self: SSAValue, weight: SSAValue) -> tuple[SSAValue, SSAValue]:
    """Gradients of x and of the weight, the latter not yet reduced."""
    grad, x, slope = operands(b, grad_output, self, weight, common=dtype_of(self))
    positive = b.compare("GT", x, full(b, 0, x))
    for_self = b.select(positive, grad, b.mul(slope, grad))
    for_weight = b.select(positive, full(b, 0, x), b.mul(x, grad))
    return b.convert(for_self, b.out[0][0]), b.convert(for_weight, b.out[1][0])


@pointwise("aten.elu_backward.default", rounded=False, options=("is_result",))
def elu_backward(
    b: Builder,
    grad_output: SSAValue,
    self_or_result: SSAValue,
    *,
    alpha: SSAValue,
    scale: SSAValue,
    input_scale: SSAValue,
    is_result: bool,
) -> SSAValue:
    """g * scale where x > 0, else g * input_scale * (y + alpha * scale) from the result y = elu(x), or
    g * input_scale * alpha * scale * e^(input_scale x) from x. So NaN gives NaN, as in the CPU's vectorised loop."""
    x, coefficient = self_or_result, b.mul(alpha, scale)
    slope = b.mul(grad_output, input_scale)
    if is_result:
        negative = b.mul(slope, b.add(x, coefficient))
    else:
        negative = b.mul(b.mul(slope, coefficient), b.exp(b.mul(x, input_scale)))
    return b.select(b.compare("GT", x, full(b, 0, x)), b.mul(grad_output, scale), negative)


@pointwise("aten.gelu_backward.default", options=("approximate",))
def gelu_backward(b: Builder, grad_output: SSAValue, self: SSAValue, *, approximate: str) -> SSAValue:
    """g times the derivative of gelu."""
    if approximate == "tanh":
        return b.mul(grad_output, _gelu_tanh_slope(b, self))
    scaled = with_number(b, "mul", self, math.sqrt(0.5))
    below = with_number(b, "mul", with_number(b, "add", b.unary("erf", scaled), 1), 0.5)
    bell = b.exp(with_number(b, "mul", b.mul(self, self), -0.5))
    density = with_number(b, "mul", bell, 1 / math.sqrt(2 * math.pi))
    return b.mul(grad_output, b.add(below, b.mul(self, density)))


def _gelu_tanh_slope(b: Builder, x: SSAValue) -> SSAValue:
    tanh = b.unary("tanh", gelu_inner(b, x))
    half = with_number(b, "mul", x, 0.5)
    cubic = with_number(b, "add", with_number(b, "mul", b.mul(x, x), 3 * KAPPA), 1)
    inner = with_number(b, "mul", cubic, math.sqrt(2 / math.pi))
    through_tanh = b.mul(b.mul(half, _one_minus(b, b.mul(tanh, tanh))), inner)
    return b.add(with_number(b, "mul", with_number(b, "add", tanh, 1), 0.5), through_tanh)


@pointwise("aten.silu_backward.default")
def silu_backward(b: Builder, grad_output: SSAValue, self: SSAValue) -> SSAValue:
    """g s (1 + x (1 - s)) with s = 1 / (1 + e^-x)."""
    s = b.unary("logistic", self)
    slope = b.mul(s, with_number(b, "add", b.mul(self, _one_minus(b, s)), 1))
    return b.mul(grad_output, slope)


@pointwise("aten.mish_backward.default")
def mish_backward(b: Builder, grad_output: SSAValue, self: SSAValue) -> SSAValue:
    """g (t + x s (1 - t^2)) with s = 1 / (1 + e^-x) and t = tanh(log1p(e^x)), both in terms of w = e^x: t = n / (n + 2)
    with n = w (w + 2), and s (1 - t^2) = 4 w (1 + w) / (n + 2)^2. Above 20, where w^4 may overflow, t is 1
    and the other term 0, or NaN at infinity, as on the CPU."""
    far = b.compare("GT", self, full(b, 20, self))
    w = b.exp(b.select(far, full(b, 0, self), self))
    n = b.mul(w, with_number(b, "add", w, 2))
    d = with_number(b, "add", n, 2)
    bend = b.div(b.mul(with_number(b, "mul", w, 4), with_number(b, "add", w, 1)), b.mul(d, d))
    t, bend = b.select(far, full(b, 1, self), b.div(n, d)), b.select(far, full(b, 0, self), bend)
    return b.mul(grad_output, b.add(t, b.mul(self, bend)))


@pointwise("aten.hardsigmoid_backward.default")
def hardsigmoid_backward(b: Builder, grad_output: SSAValue, self: SSAValue) -> SSAValue:
    """g / 6 where -3 < x < 3."""
    inside = b.and_(b.compare("GT", self, full(b, -3, self)), b.compare("LT", self, full(b, 3, self)))
    return b.select(inside, with_number(b, "mul", grad_output, SIXTH), full(b, 0, self))


@pointwise("aten.hardswish_backward.default")
def hardswish_backward(b: Builder, grad_output: SSAValue, self: SSAValue) -> SSAValue:
    """0 where x <= -3, g (x / 3 + 1/2) where -3 < x < 3, g beyond, and NaN of NaN as in the CPU's vectorised loop."""
    slope = with_number(b, "add", with_number(b, "div", self, 3), 0.5)
    middle = b.select(b.compare("GE", self, full(b, 3, self)), grad_output, b.mul(grad_output, slope))
    return b.select(b.compare("LE", self, full(b, -3, self)), full(b, 0, self), middle)


def _shrink_backward(b: Builder, grad: SSAValue, x: SSAValue, lambd: SSAValue) -> SSAValue:
    outside = b.or_(b.compare("LT", x, b.neg(lambd)), b.compare("GT", x, lambd))
    return b.select(outside, grad, full(b, 0, grad))


@pointwise("aten.hardshrink_backward.default", halves="own")
def hardshrink_backward(b: Builder, grad_out: SSAValue, self: SSAValue, *, lambd: SSAValue) -> SSAValue:
    """g where |x| > lambd, else 0, of NaN too."""
    return _shrink_backward(b, grad_out, self, lambd)


@pointwise("aten.softshrink_backward.default", halves="own")
def softshrink_backward(b: Builder, grad_output: SSAValue, self: SSAValue, *, lambd: SSAValue) -> SSAValue:
    """g where |x| > lambd, else 0, of NaN too."""
    return _shrink_backward(b, grad_output, self, lambd)


@pointwise("aten.softplus_backward.default", rounded=False)
def softplus_backward(
    b: Builder, grad_output: SSAValue, self: SSAValue, *, beta: SSAValue, threshold: SSAValue
) -> SSAValue:
    """g where beta x > threshold, else g z / (z + 1) with z = e^(beta x)."""
    scaled = b.mul(self, beta)
    z = b.exp(scaled)
    slope = b.div(b.mul(grad_output, z), with_number(b, "add", z, 1))
    return b.select(b.compare("GT", scaled, threshold), grad_output, slope)


@rule("aten.log_sigmoid_backward.default")
def log_sigmoid_backward(b: Builder, grad_output: SSAValue, self: SSAValue, buffer: SSAValue) -> SSAValue:
    """g z / (1 + z) for x >= 0, g (1 - z / (1 + z)) below, with z = e^-|x| (the forward's buffer)."""
    grad, x = operands(b, grad_output, self, common=dtype_of(grad_output))
    z = b.convert(buffer, dtype_of(x)) if shape_of(buffer) == shape_of(x) else decay(b, x)
    share = b.div(z, with_number(b, "add", z, 1))
    slope = b.select(b.compare("LT", x, full(b, 0, x)), _one_minus(b, share), share)
    return finish(b, b.mul(grad, slope))


@rule("aten.glu_backward.default")
def glu_backward(b: Builder, grad_output: SSAValue, self: SSAValue, dim: int) -> SSAValue:
    """(g s, g a s (1 - s)) along dim, with a the first half of x and s the logistic of the second."""
    grad, x = (b.convert(v, wide(dtype_of(self))) for v in (grad_output, self))
    first, second = halve(b, x, dim)
    gate = b.unary("logistic", second)
    for_gate = b.mul(b.mul(b.mul(_one_minus(b, gate), gate), grad), first)
    return finish(b, b.concatenate([b.mul(gate, grad), for_gate], dim % len(shape_of(x))))


@pointwise("aten.logit_backward.default")
def logit_backward(b: Builder, grad_output: SSAValue, self: SSAValue, *, eps: SSAValue | None) -> SSAValue:
    """g / (x (1 - x)); outside the bounds, NaN, or 0 if the bounds come from an eps that is not negative."""
    zero = full(b, 0, self)
    low, beyond = zero, full(b, math.nan, self)
    if eps is not None:
        low, beyond = b.max(eps, zero), b.select(b.compare("LT", eps, zero), beyond, zero)
    outside = b.or_(b.compare("LT", self, low), b.compare("GT", self, stored(b, _one_minus(b, low))))
    slope = b.div(grad_output, b.mul(self, _one_minus(b, self)))
    at_zero = b.mul(grad_output, full(b, math.inf, self))  # of either sign
    return b.select(outside, beyond, b.select(b.compare("EQ", self, zero), at_zero, slope))


@rule("aten.native_dropout_backward.default", numbers=("scale",))
def native_dropout_backward(b: Builder, grad_output: SSAValue, mask: SSAValue, scale: SSAValue) -> SSAValue:
    """g * mask * scale, with scale a float; so the result is a float even for integers, and their zeros positive."""
    dtype = b.out[0][0]
    if is_integer(dtype_of(grad_output)):
        grad_output = b.mul(grad_output, b.convert(mask, dtype_of(grad_output)))
    grad, keep, factor = promote(b, grad_output, mask, scale, to=wide(dtype))
    return b.convert(b.mul(b.mul(grad, keep), factor), dtype)
