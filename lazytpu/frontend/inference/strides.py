"""Strides of pointwise results, by the rules of TensorIterator.cpp.

torch's meta functions agree with the CPU's kernels on most inputs. They differ if dimensions have size 1, if inputs are
broadcast, and for ops that they do not treat as pointwise (copysign, threshold_backward).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from lazytpu.trace.value import row_major

Shape = tuple[int, ...]

# Pointwise ops whose kernels create their result differently: like one input, contiguous, or by other ops.
_OTHERWISE = frozenset(
    """clone _to_copy _conj_physical masked_fill soft_margin_loss native_dropout dropout bernoulli hardtanh nan_to_num
    mvlgamma glu angle huber_loss binary_cross_entropy copy fill zeros_like ones_like full_like rand_like empty_like
    rrelu_with_noise""".split()
)
_TOO = frozenset(("complex", "mse_loss", "smooth_l1_loss", "where"))  # pointwise, but not tagged
_REVERSED = frozenset(("threshold_backward",))  # kernels that pass their operands in another order
# For these ops numbers are operands, as 0-d tensors; for the others they are settings.
_WITH_NUMBERS = frozenset(
    """add sub mul div rsub remainder fmod floor_divide eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor __and__
    __or__ __xor__ __lshift__ __rshift__ bitwise_left_shift bitwise_right_shift copysign xlogy special_xlog1py
    float_power true_divide""".split()
)


def is_iterated(op: OpOverload) -> bool:
    """Return whether the CPU's kernel is a loop over all elements of all operands."""
    name = op._schema.name.partition("::")[2]
    if name == "pow" and op._overloadname == "Scalar":  # contiguous, of a number to the power of a tensor
        return False
    return name in _TOO or (torch.Tag.pointwise in op.tags and name not in _OTHERWISE)


def iterated(op: OpOverload, arguments: dict[str, Any], result: Any) -> Any:
    """Return the (meta) result of a pointwise op, with the CPU's strides."""
    name = op._schema.name.partition("::")[2]
    if not isinstance(result, Tensor) or any(r.alias_info for r in op._schema.returns):
        return result
    operands: list[tuple[Shape, Shape]] = []
    for a in op._schema.arguments:
        value = arguments.get(a.name)
        if isinstance(value, Tensor):
            operands.append((tuple(value.shape), tuple(value.stride())))
        elif type(value) in (int, float, bool, complex) and ("Tensor" in str(a.type) or _is_operand(name, str(a.type))):
            operands.append(((), ()))
    if name in _REVERSED:
        operands.reverse()
    shape = tuple(result.shape)
    if not operands or tuple(torch.broadcast_shapes(*(size for size, _ in operands))) != shape:
        return result
    stride = output_stride(shape, operands)
    return result if stride == result.stride() else result.new_empty_strided(shape, stride)


def _is_operand(name: str, type_: str) -> bool:
    return name in _WITH_NUMBERS and ("number" in type_ or "Scalar" in type_)


def output_stride(shape: Shape, operands: Sequence[tuple[Shape, Shape]]) -> Shape:
    """Return the strides of a new result of operands (size, stride) that broadcast to `shape`."""
    if all(size == shape for size, _ in operands):
        strides = [stride for _, stride in operands]
        metas = [torch.empty_strided(shape, stride, device="meta") for stride in strides]
        if all(m.is_contiguous() for m in metas):
            return row_major(shape)
        if len(shape) == 4 and all(m.is_contiguous(memory_format=torch.channels_last) for m in metas):
            return tuple(torch.empty(shape, device="meta", memory_format=torch.channels_last).stride())
        if len(set(strides)) == 1 and torch.ops.aten.is_non_overlapping_and_dense.default(metas[0]):
            return strides[0]
    return _permuted(shape, [_broadcast(shape, size, stride) for size, stride in operands])


def _broadcast(shape: Shape, size: Shape, stride: Shape) -> Shape:
    new = len(shape) - len(size)
    seen = zip(size, stride, shape[new:], strict=True)
    return (0,) * new + tuple(0 if n == 1 and full != 1 else t for n, t, full in seen)


def _permuted(shape: Shape, strides: list[Shape]) -> Shape:
    """Sort the dimensions as `reorder_dimensions` does: an insertion sort, in which the first operand that orders two
    dimensions decides."""
    rank = len(shape)
    order = list(reversed(range(rank)))  # the innermost dimension first
    for i in range(1, rank):
        moving = i
        for before in reversed(range(i)):
            comparison = _compare(shape, strides, order[before], order[moving])
            if comparison > 0:
                order[before], order[moving] = order[moving], order[before]
                moving = before
            elif comparison < 0:
                break
    if order == list(reversed(range(rank))):
        return row_major(shape)
    result, step = [0] * rank, 1
    for dim in order:
        result[dim] = step
        step *= shape[dim]
    return tuple(result)


def _compare(shape: Shape, strides: list[Shape], inner: int, outer: int) -> int:
    for stride in strides:
        if stride[inner] == 0 or stride[outer] == 0:
            continue
        if stride[inner] != stride[outer]:
            return -1 if stride[inner] < stride[outer] else 1
        if shape[inner] > shape[outer]:
            return 1
    return 0
