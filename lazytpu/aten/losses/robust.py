"""Losses that are quadratic near 0 and linear beyond a bound: Huber and smooth L1. The gradient of the squared error:
torch's decomposition divides by the count of no element, too.

f16 and bf16 are computed in f32 and rounded once. With r = self - target and a the bound:
    huber: r²/2 where |r| < a, else a·(|r| - a/2); smooth L1: the same divided by a.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.losses.likelihood import MEAN, NONE
from lazytpu.aten.pointwise.operands import full, operands, result_type, with_number
from lazytpu.aten.registry import rule
from lazytpu.ir.types import shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder


def _residual(b: Builder, self: SSAValue, target: SSAValue) -> SSAValue:
    return b.sub(*operands(b, self, target, common=result_type(self, target)))


def _reduced(b: Builder, losses: SSAValue, reduction: int) -> SSAValue:
    if reduction != NONE:
        count, dims = prod(shape_of(losses)), range(len(shape_of(losses)))
        losses = b.reduce("add", losses, dims)
        if reduction == MEAN:
            losses = b.div(losses, full(b, count, losses))
    return b.convert(losses, b.out[0][0])


@rule("aten.huber_loss.default", specialized=("delta",))
def huber_loss(b: Builder, self: SSAValue, target: SSAValue, reduction: int, delta: Scalar) -> SSAValue:
    """Σ or mean of r²/2 where |r| < delta, else delta·(|r| - delta/2)."""
    size = b.abs(_residual(b, self, target))
    bound = full(b, delta, size)
    square = b.mul(with_number(b, "mul", size, 0.5), size)
    line = b.mul(bound, b.sub(size, with_number(b, "mul", bound, 0.5)))
    return _reduced(b, b.select(b.compare("LT", size, bound), square, line), reduction)


@rule("aten.huber_loss_backward.default", specialized=("delta",))
def huber_loss_backward(
    b: Builder, grad_output: SSAValue, self: SSAValue, target: SSAValue, reduction: int, delta: Scalar
) -> SSAValue:
    """The gradient of self: grad·r where |r| < delta, else ±grad·delta; divided by the count for a mean."""
    x, bound, grad = _terms(b, grad_output, self, target, delta)
    share = _share(b, grad, x, reduction)
    inside = b.mul(b.mul(share, x), grad)
    beyond = b.mul(b.mul(share, grad), bound)
    below = b.mul(b.mul(b.neg(share), grad), bound)
    gradient = b.select(b.compare("GT", x, bound), beyond, inside)
    return b.convert(b.select(b.compare("LT", x, b.neg(bound)), below, gradient), b.out[0][0])


@rule("aten.smooth_l1_loss.default", specialized=("beta",))
def smooth_l1_loss(b: Builder, self: SSAValue, target: SSAValue, reduction: int, beta: Scalar) -> SSAValue:
    """Σ or mean of r²/(2 beta) where |r| < beta, else |r| - beta/2; for beta = 0 the L1 loss."""
    size = b.abs(_residual(b, self, target))
    bound = full(b, beta, size)
    square = b.div(with_number(b, "mul", b.mul(size, size), 0.5), bound)
    line = b.sub(size, with_number(b, "mul", bound, 0.5))
    return _reduced(b, b.select(b.compare("LT", size, bound), square, line), reduction)


@rule("aten.smooth_l1_loss_backward.default", specialized=("beta",))
def smooth_l1_loss_backward(
    b: Builder, grad_output: SSAValue, self: SSAValue, target: SSAValue, reduction: int, beta: Scalar
) -> SSAValue:
    """The gradient of self: grad·r/beta where |r| < beta, else grad·sign(r); divided by the count for a mean."""
    x, bound, grad = _terms(b, grad_output, self, target, beta)
    grad = b.mul(_share(b, grad, x, reduction), grad)
    inside = b.div(b.mul(grad, x), bound)
    beyond = b.mul(grad, b.unary("sign", x))
    return b.convert(b.select(b.compare("LT", b.abs(x), bound), inside, beyond), b.out[0][0])


@rule("aten.mse_loss_backward.default")
def mse_loss_backward(b: Builder, grad_output: SSAValue, self: SSAValue, target: SSAValue, reduction: int) -> SSAValue:
    """The gradient of self: 2·r·grad, divided by the count for a mean."""
    x = _residual(b, self, target)
    (grad,) = operands(b, grad_output, common=result_type(self, target))
    twice = full(b, 2.0 / max(prod(shape_of(x)), 1) if reduction == MEAN else 2.0, x)
    return b.convert(b.mul(b.mul(twice, x), b.broadcast_to(grad, shape_of(x))), b.out[0][0])


def _terms(
    b: Builder, grad_output: SSAValue, self: SSAValue, target: SSAValue, bound: Scalar
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(r, the bound, the gradient), in one shape."""
    x = _residual(b, self, target)
    (grad,) = operands(b, grad_output, common=result_type(self, target))
    return x, full(b, bound, x), b.broadcast_to(grad, shape_of(x))


def _share(b: Builder, like: SSAValue, x: SSAValue, reduction: int) -> SSAValue:
    return full(b, 1.0 / max(prod(shape_of(x)), 1) if reduction == MEAN else 1.0, like)
