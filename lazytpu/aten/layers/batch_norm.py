"""Batch normalization, forward and backward, in all the forms in which torch records it.

Statistics are over all dims but the channels, computed in f32 for f16 and bf16. In training the running statistics
become momentum·new + (1 - momentum)·old, with the unbiased variance (https://arxiv.org/abs/1502.03167).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from lazytpu.aten.layers.normalization import Gradients, inverse_deviation, scaled, stored
from lazytpu.aten.pointwise.operands import full, wide
from lazytpu.aten.reductions.statistics import moments
from lazytpu.aten.registry import rule
from lazytpu.ir.types import dtype_of, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.aten.scalars import Scalar
    from lazytpu.ir.builder import Builder

Running = tuple["SSAValue | None", "SSAValue | None"]


def _folded(x: SSAValue) -> list[int]:
    return [d for d in range(len(shape_of(x))) if d != 1]


def _apply(
    b: Builder, input: SSAValue, mean: SSAValue, rstd: SSAValue, weight: SSAValue | None, bias: SSAValue | None
) -> SSAValue:
    """(x - mean)·rstd·weight + bias; the last four are per channel."""
    dtype, shape = dtype_of(mean), shape_of(input)
    centred = b.sub(b.convert(input, dtype), _spread(b, mean, shape))
    normal = b.mul(centred, _spread(b, rstd, shape))
    return b.convert(scaled(b, normal, weight, bias, [1]), dtype_of(input))


def _updated(b: Builder, running: SSAValue | None, new: SSAValue, momentum: Scalar) -> SSAValue | None:
    if running is None:
        return None
    dtype, shape = dtype_of(new), shape_of(new)
    share = b.scalar(momentum, dtype)
    complement = b.broadcast_to(b.sub(b.constant(1, dtype), share), shape)
    old = b.mul(complement, b.convert(running, dtype))
    return b.convert(b.add(b.mul(b.broadcast_to(share, shape), new), old), dtype_of(running))


def by_batch_statistics(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running: Running,
    momentum: Scalar,
    eps: Scalar | float,
) -> tuple[SSAValue, SSAValue, SSAValue, SSAValue | None, SSAValue | None]:
    """(output, mean, 1 / sqrt(variance + eps), new running mean, new running variance), from batch statistics."""
    x, dims = b.convert(input, wide(dtype_of(input))), _folded(input)
    size, channels = prod(shape_of(x)[d] for d in dims), [shape_of(x)[1]]
    mean, squared = (b.reshape(s, channels) for s in moments(b, x, dims))
    rstd = inverse_deviation(b, b.div(squared, full(b, size, squared)), eps)
    unbiased = b.div(squared, full(b, size - 1, squared))
    output = _apply(b, input, mean, rstd, weight, bias)
    new = _updated(b, running[0], mean, momentum), _updated(b, running[1], unbiased, momentum)
    return output, stored(b, mean, 1), stored(b, rstd, 2), *new


@rule("aten._native_batch_norm_legit_no_training.default", numbers=("momentum",), specialized=("eps",))
def by_running_statistics(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue,
    running_var: SSAValue,
    momentum: Scalar,
    eps: Scalar | float,
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """(output, empty, empty), from the running statistics; like the CPU, it saves none."""
    dtype = wide(dtype_of(input))
    mean, rstd = b.convert(running_mean, dtype), inverse_deviation(b, b.convert(running_var, dtype), eps)
    output = _apply(b, input, mean, rstd, weight, bias)
    saved = [
        b.constant(0, kind, shape) if prod(shape) == 0 else b.convert(value, kind)
        for value, (kind, shape) in zip((mean, rstd), b.out[1:3], strict=True)
    ]
    return output, saved[0], saved[1]


@rule(
    "aten._native_batch_norm_legit.default",
    "aten._native_batch_norm_legit_functional.default",
    numbers=("momentum",),
    specialized=("eps",),
)
def native_batch_norm_legit(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue,
    running_var: SSAValue,
    training: bool,
    momentum: Scalar,
    eps: Scalar | float,
) -> tuple[SSAValue | None, ...]:
    """(output, saved mean, saved rstd, new running mean, new running variance)."""
    if training:
        return by_batch_statistics(b, input, weight, bias, (running_mean, running_var), momentum, eps)
    results = by_running_statistics(b, input, weight, bias, running_mean, running_var, momentum, eps)
    return *results, running_mean, running_var


@rule(
    "aten.native_batch_norm.default",
    "aten._native_batch_norm_legit.no_stats",
    numbers=("momentum",),
    specialized=("eps",),
)
def native_batch_norm(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue | None = None,
    running_var: SSAValue | None = None,
    *,
    training: bool,
    momentum: Scalar,
    eps: Scalar | float,
) -> tuple[SSAValue | None, ...]:
    """(output, saved mean, saved rstd), without running statistics from the batch's statistics."""
    if training and (running_mean is not None or running_var is not None):
        raise ValueError(
            "native_batch_norm in training writes its running statistics, which its schema does not show; "
            "expected it to be recorded as _native_batch_norm_legit"
        )
    if training or running_mean is None or running_var is None:
        return by_batch_statistics(b, input, weight, bias, (None, None), momentum, eps)[:3]
    return by_running_statistics(b, input, weight, bias, running_mean, running_var, momentum, eps)


@rule(
    "aten._batch_norm_with_update.default",
    "aten._batch_norm_with_update_functional.default",
    numbers=("momentum",),
    specialized=("eps",),
)
def batch_norm_with_update(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue,
    running_var: SSAValue,
    momentum: Scalar,
    eps: Scalar | float,
) -> tuple[SSAValue | None, ...]:
    """(output, saved mean, saved rstd, reserve, new running mean, new running variance); the reserve is empty."""
    output, mean, rstd, *new = by_batch_statistics(b, input, weight, bias, (running_mean, running_var), momentum, eps)
    return output, mean, rstd, b.constant(0, *b.out[3]), *new


@rule("aten._batch_norm_no_update.default", numbers=("momentum",), specialized=("eps",))
def batch_norm_no_update(
    b: Builder,
    input: SSAValue,
    weight: SSAValue | None,
    bias: SSAValue | None,
    running_mean: SSAValue,
    running_var: SSAValue,
    momentum: Scalar,
    eps: Scalar | float,
) -> tuple[SSAValue, ...]:
    """(output, empty, empty, reserve), from the running statistics."""
    results = by_running_statistics(b, input, weight, bias, running_mean, running_var, momentum, eps)
    return *results, b.constant(0, *b.out[3])


@rule("aten.native_batch_norm_backward.default", specialized=("eps",))
def native_batch_norm_backward(
    b: Builder,
    grad_out: SSAValue,
    input: SSAValue,
    weight: SSAValue | None,
    running_mean: SSAValue | None,
    running_var: SSAValue | None,
    save_mean: SSAValue | None,
    save_invstd: SSAValue | None,
    train: bool,
    eps: Scalar | float,
    output_mask: Sequence[bool],
) -> Gradients:
    """Gradients of (input, weight, bias). Running statistics are constants, and ∂x is just g·weight·rstd.

    With batch statistics, ∂x = weight·rstd·(g - mean(g) - x̂·mean(g·x̂)), whose two sums are also the gradients of bias
    and weight.
    """
    dtype, shape, dims = wide(dtype_of(input)), shape_of(input), _folded(input)
    mean, rstd = (save_mean, save_invstd) if train else (running_mean, running_var)
    if mean is None or rstd is None:
        raise ValueError(f"batch_norm backward with train={train} expected the statistics of its forward; got None")
    mean, rstd = b.convert(mean, dtype), b.convert(rstd, dtype)
    rstd = rstd if train else inverse_deviation(b, rstd, eps)
    x, g = b.convert(input, dtype), b.convert(grad_out, dtype)
    normal = b.mul(b.sub(x, _spread(b, mean, shape)), _spread(b, rstd, shape))
    total, product = b.reduce("add", g, dims), b.reduce("add", b.mul(g, normal), dims)
    kind = dtype if weight is None else dtype_of(weight)
    of_input = None
    if output_mask[0]:
        if train:
            size = full(b, prod(shape[d] for d in dims), total)
            g = b.sub(g, _spread(b, b.div(total, size), shape))
            g = b.sub(g, b.mul(normal, _spread(b, b.div(product, size), shape)))
        factor = rstd if weight is None else b.mul(rstd, b.convert(weight, dtype))
        of_input = b.convert(b.mul(g, _spread(b, factor, shape)), dtype_of(input))
    of_weight = b.convert(product, kind) if output_mask[1] else None
    return of_input, of_weight, b.convert(total, kind) if output_mask[2] else None


def _spread(b: Builder, per_channel: SSAValue, shape: Sequence[int]) -> SSAValue:
    return b.broadcast_in_dim(per_channel, shape, [1])


@rule("aten.batch_norm_backward.default", specialized=("eps",))
def batch_norm_backward(
    b: Builder,
    grad_out: SSAValue,
    input: SSAValue,
    weight: SSAValue,
    running_mean: SSAValue | None,
    running_var: SSAValue | None,
    save_mean: SSAValue | None,
    save_var: SSAValue | None,
    update: bool,
    eps: Scalar | float,
    output_mask: Sequence[bool],
    reserve: SSAValue,
) -> Gradients:
    """The backward of `_batch_norm_with_update`; `save_var` holds the saved rstd."""
    return native_batch_norm_backward(
        b, grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )
