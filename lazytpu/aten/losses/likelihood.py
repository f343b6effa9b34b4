"""Negative log likelihood. Most other losses decompose, in torch, into pointwise ops and reductions."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.dims import along, without
from lazytpu.aten.indexing.gather import in_range, pick, take
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder

NONE, MEAN, SUM = 0, 1, 2  # at::Reduction


def _targets(b: Builder, target: SSAValue, classes: int, ignore_index: int) -> tuple[SSAValue, SSAValue]:
    """(class of each example as i32, 0 where ignored; whether each example counts)."""
    target = b.convert(target, "i64")
    valid = b.compare("NE", target, full(b, ignore_index, target))
    target = b.select(valid, target, full(b, 0, target))
    return in_range(b, target, classes, "Target is out of bounds."), valid


def _class_dim(self: SSAValue) -> int:
    """The dim of the classes in [N, C, ...] or [C]."""
    return min(1, len(shape_of(self)) - 1)


@rule("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss_forward(
    b: Builder, self: SSAValue, target: SSAValue, weight: SSAValue | None, reduction: int, ignore_index: int
) -> tuple[SSAValue, SSAValue]:
    """(loss, total weight): -w[t]·x[t] for each example, summed, or averaged with the weights w[t]."""
    dtype, dim = dtype_of(self), _class_dim(self)
    classes, valid = _targets(b, target, shape_of(self)[dim], ignore_index)
    picked = b.convert(pick(b, self, classes, dim), wide(dtype))
    zero = full(b, 0, picked)
    weights_of = full(b, 1, picked) if weight is None else b.convert(take(b, weight, classes, 0), wide(dtype))
    weights_of = b.select(valid, weights_of, zero)
    losses = b.select(valid, b.neg(picked) if weight is None else b.neg(b.mul(picked, weights_of)), zero)
    if reduction == NONE and shape_of(losses):
        return b.convert(losses, dtype), b.constant(0, dtype)
    dims = tuple(range(len(shape_of(losses))))
    loss, total_weight = b.reduce("add", losses, dims), b.reduce("add", weights_of, dims)
    if reduction == MEAN:
        loss = b.div(loss, total_weight)
    return b.convert(loss, dtype), b.convert(total_weight, dtype)


@rule("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(
    b: Builder,
    grad_output: SSAValue,
    self: SSAValue,
    target: SSAValue,
    weight: SSAValue | None,
    reduction: int,
    ignore_index: int,
    total_weight: SSAValue,
) -> SSAValue:
    """-w[t]·g at each example's class, 0 elsewhere.

    A comparison with the class index rather than a scatter into zeros: it fuses with its consumers, and its sum over
    the classes, which log_softmax's backward needs, is known.
    """
    dtype, dim, shape = dtype_of(self), _class_dim(self), shape_of(self)
    classes, valid = _targets(b, target, shape[dim], ignore_index)
    grad = b.convert(grad_output, wide(dtype))
    if reduction == MEAN:
        grad = b.div(grad, b.convert(total_weight, wide(dtype)))
    grad = b.neg(b.broadcast_to(grad, without(shape, [dim])))
    if weight is not None:
        grad = b.mul(grad, b.convert(take(b, weight, classes, 0), wide(dtype)))
    grad = b.convert(b.select(valid, grad, full(b, 0, grad)), dtype)
    hit = b.compare("EQ", b.iota("i32", shape, dim), along(b, classes, shape, [dim]))
    return b.select(hit, along(b, grad, shape, [dim]), b.constant(0, dtype, shape))


LEAST_VARIANCE = 9.999999960041972e-13
"""The least p (1 - p) that the CPU's kernel divides by: 1e-12 as a float, whatever the dtype."""


@rule("aten.binary_cross_entropy_backward.default")
def binary_cross_entropy_backward(
    b: Builder,
    grad_output: SSAValue,
    self: SSAValue,
    target: SSAValue,
    weight: SSAValue | None = None,
    reduction: int = MEAN,
) -> SSAValue:
    """(p - t) / (p (1 - p)) for probabilities p and targets t, times the weight and the gradient."""
    dtype, shape = wide(dtype_of(self)), shape_of(self)
    grad, p, t = (b.broadcast_to(b.convert(x, dtype), shape) for x in (grad_output, self, target))
    variance = b.max(b.mul(b.sub(full(b, 1, p), p), p), full(b, LEAST_VARIANCE, p))
    result = b.div(b.mul(grad, b.sub(p, t)), variance)
    if weight is not None:
        result = b.mul(result, b.broadcast_to(b.convert(weight, dtype), shape))
    if reduction == MEAN:
        result = b.div(result, full(b, prod(shape), result))
    return b.convert(result, dtype_of(self))
