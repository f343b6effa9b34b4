"""Custom kernels and collectives.

A kernel declares which sizes may be padded, and the values its padding must hold (`lazytpu.ir.padding_rule`). A kernel
without a declaration is refused, and so are collectives, in which other devices take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from xdsl.ir import SSAValue

from lazytpu.ir.base import TensorOp
from lazytpu.ir.collectives import CollectiveOp
from lazytpu.ir.jax_call import JaxCallOp
from lazytpu.ir.padding_rule import DimRule, PaddingRule
from lazytpu.ir.types import dtype_of, extremes, is_float, shape_of
from lazytpu.passes.padding.dims import Dim, Number, Refused, contiguous, merged, sized
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Walk, rule


@rule(JaxCallOp)
def in_kernel(w: Walk, op: JaxCallOp) -> Sequence[Padded]:
    """Mask the operands of a custom kernel as its rule declares."""
    name = op.body.data.rpartition("_")[0]
    if not op.padding.data:
        raise Refused(f"the kernel {name!r} does not say what padding it bears")
    declared = PaddingRule.parse(op.padding.data)
    sizes: dict[str, Dim] = {}
    for i, (dims, operand) in enumerate(zip(declared.operands, op.operands, strict=True)):
        for k, (dim, padded) in enumerate(zip(dims, w.dims(operand), strict=True)):
            if dim.name is None and padded.padded:
                raise Refused(f"the kernel {name!r} bears no padding in dimension {k} of operand {i}")
            if dim.name is not None:
                contiguous(padded)
                previous = sizes.get(dim.name)
                sizes[dim.name] = padded if previous is None else merged(previous, padded)
    for i, dims in enumerate(declared.operands):
        _fill(w, op, i, dims, sizes)
    return [_result(w, op, i, dims, sizes) for i, dims in enumerate(declared.results)]


def _fill(w: Walk, op: TensorOp, index: int, dims: Sequence[DimRule], sizes: dict[str, Dim]) -> None:
    """Set the padding of an operand to the values that the kernel needs."""
    for fill in dict.fromkeys(dim.fill for dim in dims if dim.fill is not None):
        operand = op.operands[index]
        pairs = zip(dims, w.dims(operand), strict=True)
        arranged = [padded if dim.name is None else sizes[dim.name] for dim, padded in pairs]
        along = [k for k, dim in enumerate(dims) if dim.fill == fill]
        w.mask_operand(op, index, along, _number(fill, operand), arranged)


def _number(fill: float, operand: SSAValue) -> Number:
    """Return a fill value in the operand's dtype; infinities are the extreme integers."""
    dtype = dtype_of(operand)
    if is_float(dtype):
        return fill
    return extremes(dtype)[fill > 0] if isinf(fill) else int(fill)


def _result(w: Walk, op: TensorOp, index: int, dims: Sequence[DimRule], sizes: dict[str, Dim]) -> Padded:
    """Return the padding of a result by the kernel's rule. Raise Refused if the annotation differs."""
    shape = shape_of(op.results[index])
    result_dims = [
        sized(n) if dim.name is None else sizes[dim.name].settled for dim, n in zip(dims, shape, strict=True)
    ]
    forms = w.forms(op, f"result{index}" if index else "result", shape)
    for dim, size in zip(result_dims, forms, strict=True):
        w.check_annotated(dim, size)
    return Padded(tuple(result_dims))


@rule(CollectiveOp)
def collective(w: Walk, op: CollectiveOp) -> Sequence[Padded]:
    """Refuse a collective."""
    raise Refused("a collective over a sized dimension: other devices may have another size")
