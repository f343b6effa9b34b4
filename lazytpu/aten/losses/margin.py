"""Hinge losses over several classes, where torch has no decomposition or a wrong one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lazytpu.aten.dims import along
from lazytpu.aten.indexing.gather import in_range, pick, take, take_along
from lazytpu.aten.indexing.scatter import put_along
from lazytpu.aten.losses.likelihood import MEAN, NONE
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder


def _share(b: Builder, grad_output: SSAValue, rows: int, classes: int, reduction: int) -> SSAValue:
    """The gradient of each term of a row's loss [rows]: the loss is a mean over classes and, if `reduction` is MEAN,
    over rows."""
    grad = b.broadcast_to(grad_output, [rows])
    return b.div(grad, full(b, classes * (rows if reduction == MEAN else 1), grad))


@dataclass
class _Terms:
    """The terms of a multi-margin loss, one per [row, class]."""

    gap: SSAValue
    "margin - x[target] + x[class]"
    other: SSAValue
    "Whether the class is not the target."
    active: SSAValue
    "Whether it is not, and the gap is positive: a NaN is not."
    index: SSAValue
    "The targets [rows] (i32)."


def _terms(b: Builder, x: SSAValue, target: SSAValue, margin: Scalar) -> _Terms:
    shape = shape_of(x)
    index = in_range(b, b.reshape(target, [shape[0]]), shape[1], "target out of range", error="RuntimeError")
    chosen = pick(b, x, index, 1)
    distance = b.sub(full(b, float(margin.value), chosen), chosen)
    gap = b.add(along(b, distance, shape, [1]), x)
    other = b.compare("NE", b.iota("i32", shape, 1), along(b, index, shape, [1]))
    return _Terms(gap, other, b.and_(other, b.compare("GT", gap, full(b, 0, gap))), index)


@rule("aten.multi_margin_loss.default")
def multi_margin_loss(
    b: Builder,
    self: SSAValue,
    target: SSAValue,
    p: Scalar,
    margin: Scalar,
    weight: SSAValue | None = None,
    reduction: int = MEAN,
) -> SSAValue:
    """Σⱼ w[t]·max(0, margin - x[t] + x[j])ᵖ / classes over j ≠ t.

    In torch's decomposition, a NaN in x makes the loss NaN; the CPU kernel leaves out terms that are not positive.
    """
    x = b.reshape(self, _matrix(self))
    rows, classes = shape_of(x)
    terms = _terms(b, x, target, margin)
    powers = terms.gap if p.value == 1 else b.mul(terms.gap, terms.gap)
    if weight is not None:
        powers = b.mul(powers, along(b, take(b, b.reshape(weight, [classes]), terms.index, 0), (rows, classes), [1]))
    powers = b.select(terms.active, powers, full(b, 0, powers))
    return _reduced(b, b.reduce("add", powers, [1]), classes, reduction)


def _reduced(b: Builder, losses: SSAValue, classes: int, reduction: int) -> SSAValue:
    """The losses of rows, from the sums of their terms, reduced."""
    rows = shape_of(losses)[0]
    losses = b.div(losses, full(b, classes, losses))
    if reduction != NONE:
        losses = b.reduce("add", losses, [0])
    if reduction == MEAN:
        losses = b.div(losses, full(b, rows, losses))
    return b.reshape(losses, b.out[0][1])


@rule("aten.multi_margin_loss_backward.default")
def multi_margin_loss_backward(
    b: Builder,
    grad_output: SSAValue,
    self: SSAValue,
    target: SSAValue,
    p: Scalar,
    margin: Scalar,
    weight: SSAValue | None = None,
    reduction: int = MEAN,
) -> SSAValue:
    """The gradient of Σⱼ w[t]·max(0, margin - x[t] + x[j])ᵖ / classes over j ≠ t: the slope at each j, and minus their
    sum at t."""
    x = b.reshape(self, _matrix(self))
    shape = shape_of(x)
    terms = _terms(b, x, target, margin)
    gap = terms.gap
    share = _share(b, grad_output, shape[0], shape[1], reduction)
    if weight is not None:
        share = b.mul(share, take(b, weight, terms.index, 0))
    slope = full(b, 1, gap) if p.value == 1 else b.mul(full(b, 2, gap), gap)
    slope = b.select(terms.active, slope, full(b, 0, gap))
    at_target = b.sub(full(b, 0, gap), along(b, b.reduce("add", slope, [1]), shape, [1]))
    slope = b.mul(b.select(terms.other, slope, at_target), along(b, share, shape, [1]))  # a zero has the sign of share
    return b.reshape(slope, shape_of(self))


def _matrix(x: SSAValue) -> tuple[int, int]:
    """(rows, classes) of an operand that may lack either dimension."""
    shape = (1, 1, *shape_of(x))
    return shape[-2], shape[-1]


@dataclass
class _Pairs:
    """The terms of a multilabel margin loss, one per [row, target, class]."""

    index: SSAValue
    "Classes of the targets [rows, classes] (i32), 0 past the last."
    marked: SSAValue
    "Whether each class is a target [rows, classes]."
    gap: SSAValue
    "1 - x[target] + x[class]"
    active: SSAValue
    "Whether the gap is positive, the target is valid, and the class is not a target."


def _pairs(b: Builder, x: SSAValue, targets: SSAValue) -> _Pairs:
    """Only the targets of a row before its first negative one count."""
    rows, classes = shape_of(x)
    cube = [rows, classes, classes]
    ended = b.cumulative("max", b.convert(b.compare("LT", targets, full(b, 0, targets)), "i32"), 1)
    counts = b.compare("EQ", ended, full(b, 0, ended))
    message, outside = "argument #2 'target' is out of range", full(b, -1, targets)
    b.check(b.compare("GE", targets, outside), message, "RuntimeError")
    targets = b.select(counts, targets, full(b, 0, targets))
    index = in_range(b, targets, classes, message, error="RuntimeError")
    chosen = b.broadcast_in_dim(take_along(b, x, 1, index), cube, [0, 1])
    gap = b.add(b.sub(b.broadcast_in_dim(x, cube, [0, 2]), chosen), b.constant(1, dtype_of(x), cube))
    counted = b.broadcast_in_dim(counts, cube, [0, 1])
    same = b.compare("EQ", b.broadcast_in_dim(index, cube, [0, 1]), b.iota("i32", cube, 2))
    marked = b.reduce("or", b.and_(counted, same), [1])
    outside = b.broadcast_in_dim(b.not_(marked), cube, [0, 2])
    active = b.and_(b.and_(counted, outside), b.compare("GT", gap, full(b, 0, gap)))
    return _Pairs(index, marked, gap, active)


@rule("aten.multilabel_margin_loss_forward.default")
def multilabel_margin_loss_forward(
    b: Builder, self: SSAValue, target: SSAValue, reduction: int
) -> tuple[SSAValue, SSAValue]:
    """(Σ max(0, 1 - x[t] + x[j]) / classes over targets t and classes j that are not targets, the mask of targets).

    torch's decomposition also counts class 0 for every entry past the last target; the CPU kernel does not.
    """
    rows, classes = _matrix(self)
    pairs = _pairs(b, b.reshape(self, [rows, classes]), b.reshape(target, [rows, classes]))
    terms = b.select(pairs.active, pairs.gap, full(b, 0, pairs.gap))
    losses = b.reduce("add", b.reduce("add", terms, [2]), [1])
    marked = b.convert(b.reshape(pairs.marked, shape_of(target)), dtype_of(self))
    return _reduced(b, losses, classes, reduction), marked


@rule("aten.multilabel_margin_loss_backward.default")
def multilabel_margin_loss_backward(
    b: Builder, grad_output: SSAValue, self: SSAValue, target: SSAValue, reduction: int, is_target: SSAValue
) -> SSAValue:
    """For each class, the number of its active pairs, negative where it is the target, times the gradient of a pair."""
    rows, classes = _matrix(self)
    pairs = _pairs(b, b.reshape(self, [rows, classes]), b.reshape(target, [rows, classes]))
    share = _share(b, grad_output, rows, classes, reduction)
    terms = b.select(pairs.active, full(b, 1, pairs.gap), full(b, 0, pairs.gap))
    of_targets = b.neg(b.reduce("add", terms, [2]))
    counted = put_along(b, "add", b.reduce("add", terms, [1]), 1, pairs.index, of_targets)
    gradient = b.mul(counted, along(b, share, (rows, classes), [1]))  # a zero has the sign of the share
    return b.reshape(gradient, shape_of(self))
