"""Matrix products and convolutions: summed padding is 0 on both sides, since 0 times NaN is NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Operation

from lazytpu.ir import contractions as ops
from lazytpu.ir.base import integer
from lazytpu.ir.types import INTEGERS, dtype_of, ints, shape_of
from lazytpu.passes.padding.dims import Dim, Refused, merged, sized
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.walk import Walk, rule
from lazytpu.passes.padding.windows import Window, windowed


@rule(ops.DotGeneralOp)
def dot_general(w: Walk, op: ops.DotGeneralOp) -> Sequence[Padded]:
    """Mask contracted dimensions; batch and free dimensions keep their padding."""
    lhs, rhs = w.dims(op.lhs), w.dims(op.rhs)
    contracted = ints(op.lhs_contract), ints(op.rhs_contract)
    batch = ints(op.lhs_batch), ints(op.rhs_batch)
    dims = [merged(lhs[i], rhs[j]) for i, j in zip(*batch, strict=True)]
    dims += [dim for i, dim in enumerate(lhs) if i not in (*batch[0], *contracted[0])]
    dims += [dim for j, dim in enumerate(rhs) if j not in (*batch[1], *contracted[1])]
    summed = [merged(lhs[i], rhs[j]) for i, j in zip(*contracted, strict=True)]
    _mask(w, op, 0, dict(zip(contracted[0], summed, strict=True)))
    if dtype_of(op.lhs) not in INTEGERS:  # 0 times any integer is 0: masking one side suffices
        _mask(w, op, 1, dict(zip(contracted[1], summed, strict=True)))
    return [Padded(tuple(dims))]


def _mask(w: Walk, op: Operation, side: int, summed: Mapping[int, Dim]) -> None:
    """Set the padding of an operand to 0 along summed dimensions, arranged as on the other side."""
    dims = [summed.get(i, dim) for i, dim in enumerate(w.dims(op.operands[side]))]
    w.mask_operand(op, side, summed, 0, dims)


@rule(ops.ConvolutionOp)
def convolution(w: Walk, op: ops.ConvolutionOp) -> Sequence[Padded]:
    """Slide windows over zero padding along spatial dimensions. A kernel's spatial dimension is sized in the gradient
    of a weight."""
    layout = ops.conv_layout(op.layout.data)
    x, kernel = w.dims(op.input), w.dims(op.kernel)
    features = [x[layout.input_feature], kernel[layout.kernel_in], kernel[layout.kernel_out]]
    batches = [x[layout.input_batch], kernel[layout.kernel_out]]
    for groups, divided in ((op.feature_groups, features), (op.batch_groups, batches)):
        if integer(groups) > 1 and any(dim.padded for dim in divided):
            raise Refused("a sized dimension is divided into the groups of a convolution")
    high = w.forms(op, "high", ints(op.high))
    strides, low, base, dilation = (ints(prop) for prop in (op.strides, op.low, op.lhs_dilation, op.rhs_dilation))
    shape, reversal = shape_of(op.results[0]), ints(op.window_reversal)
    result: list[Dim | None] = [None] * len(shape)
    grouped = integer(op.batch_groups) > 1
    result[layout.output_batch] = sized(shape[layout.output_batch]) if grouped else x[layout.input_batch]
    result[layout.output_feature] = kernel[layout.kernel_out]
    for n, (i, k, o) in enumerate(zip(layout.input_spatial, layout.kernel_spatial, layout.output_spatial, strict=True)):
        if kernel[k].padded and (reversal[n] or not kernel[k].prefix):
            raise Refused(f"the window of a convolution is the sized dimension {kernel[k]}, reversed or merged")
        window = Window(kernel[k].total, strides[n], low[n], high[n], base[n], dilation[n])
        result[o] = x[i] if window.trivial else windowed(w, x[i], window, kernel[k].size, shape[o])
    summed = features[0] if integer(op.feature_groups) > 1 else merged(features[0], features[1])
    _mask(w, op, 0, {layout.input_feature: summed, **{i: x[i] for i in layout.input_spatial}})
    inner = features[1] if integer(op.feature_groups) > 1 else summed
    _mask(w, op, 1, {layout.kernel_in: inner, **{i: kernel[i] for i in layout.kernel_spatial}})
    return [Padded(tuple(dim for dim in result if dim is not None))]
