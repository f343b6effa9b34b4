"""Matrix products and convolutions.

Products of f16 and bf16 are summed in f32 and rounded once. The operands stay narrow, as matrix units take them; on
hardware without such units (the CPU), XLA widens them itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lazytpu.ir import contractions as ops
from lazytpu.ir.base import integer
from lazytpu.ir.reductions import windowed_shape
from lazytpu.ir.types import dtype_of, ints, shape_of
from lazytpu.lowering.convolution_window import ConvWindow, without_groups
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo


def _precision(e: Emission, name: str) -> ir.ArrayAttr:
    return e.attribute(name, lambda: ir.ArrayAttr.get([hlo.PrecisionAttr.get(name.upper())] * 2))


_NARROW = ("f16", "bf16")


def _accumulator(dtype: str) -> str:
    return "f32" if dtype in _NARROW else dtype


@lowers(ops.DotGeneralOp)
def dot_general(e: Emission, op: ops.DotGeneralOp, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    dtype = dtype_of(op.result_type())
    lhs_dims, rhs_dims = (ints(op.lhs_batch), ints(op.lhs_contract)), (ints(op.rhs_batch), ints(op.rhs_contract))
    if dtype in ("i64", "ui64") and e.target == "tpu":
        return _summed(e, op, (lhs, *lhs_dims), (rhs, *rhs_dims))
    narrow = dtype_of(op.lhs.type) in _NARROW
    if narrow:
        lhs, lhs_dims = _batch_first(lhs, *lhs_dims)
        rhs, rhs_dims = _batch_first(rhs, *rhs_dims)
        lhs, rhs = _as_it_is(e, lhs), _as_it_is(e, rhs)
    numbers = hlo.DotDimensionNumbers.get(lhs_dims[0], rhs_dims[0], lhs_dims[1], rhs_dims[1])
    product = hlo.dot_general(
        e.tensor(_accumulator(dtype), shape_of(op.result_type())),
        lhs,
        rhs,
        numbers,
        precision_config=_precision(e, op.precision.data),
    )
    return e.convert(_as_it_is(e, product) if narrow else product, dtype)


def _summed(
    e: Emission,
    op: ops.DotGeneralOp,
    left: tuple[ir.Value, Sequence[int], Sequence[int]],
    right: tuple[ir.Value, Sequence[int], Sequence[int]],
) -> ir.Value:
    """The product as a broadcast multiplication and a sum: the TPU compiler has no dot of 64-bit integers."""
    dtype, result_shape = dtype_of(op.result_type()), shape_of(op.result_type())
    moved: list[ir.Value] = []
    for x, batch, contract in (left, right):
        free = [d for d in range(ir.RankedTensorType(x.type).rank) if d not in (*batch, *contract)]
        moved.append(hlo.transpose(e.convert(x, dtype), [*batch, *free, *contract]))
    batches, contracted = len(left[1]), len(left[2])
    shapes = [tuple(ir.RankedTensorType(x.type).shape) for x in moved]
    full_shape = [*result_shape, *shapes[0][len(shapes[0]) - contracted :]]
    ends = range(len(result_shape), len(full_shape))
    starts = batches, len(shapes[0]) - contracted  # of the free dims of each operand
    factors = [
        hlo.broadcast_in_dim(
            e.tensor(dtype, full_shape),
            x,
            [*range(batches), *range(start, start + len(shape) - batches - contracted), *ends],
        )
        for x, shape, start in zip(moved, shapes, starts, strict=True)
    ]
    product = e.binary("multiply", *factors)
    total = hlo.ReduceOp([e.tensor(dtype, result_shape)], [product], [e.constant(0, dtype)], list(ends))
    e.combiner(total.body, "add", dtype)
    return total.results[0]


def _batch_first(
    x: ir.Value, batch: Sequence[int], contract: Sequence[int]
) -> tuple[ir.Value, tuple[Sequence[int], Sequence[int]]]:
    """An operand transposed so that its batch dims come first, with its new batch and contracted dims.

    XLA:CPU (jaxlib 0.10.2) transposes it too, but too late: a product of bf16 that contracts dims {2} and {1}, with
    batch dims {0,1} and {0,2}, then misses its kernels and fails at run time ("Unsupported element type for
    DotThunk::Execute: BF16 x BF16 = F32").
    """
    front = tuple(range(len(batch)))
    if tuple(batch) == front:
        return x, (batch, contract)
    order = [*batch, *(d for d in range(ir.RankedTensorType(x.type).rank) if d not in batch)]
    return hlo.transpose(x, order), (front, [order.index(d) for d in contract])


def _as_it_is(e: Emission, x: ir.Value) -> ir.Value:
    """Put a barrier behind an operand or the result of a narrow product, on the CPU.

    XLA:CPU (jaxlib 0.10.2) decides early which products of bf16 a library computes. It then fuses an adjacent transpose
    into the product, the library refuses the fused product, and the run fails, like the products of `_batch_first`.
    """
    return e.create("stablehlo.optimization_barrier", [x], x.type) if e.target == "cpu" else x


@lowers(ops.ConvolutionOp)
def convolution(e: Emission, op: ops.ConvolutionOp, x: ir.Value, kernel: ir.Value) -> ir.Value:
    dtype, layout = dtype_of(op.result_type()), ops.conv_layout(op.layout.data)
    flipped = [layout.kernel_spatial[i] for i, flag in enumerate(ints(op.window_reversal)) if flag]
    shape, size, taps = (shape_of(t) for t in (op.result_type(), op.input.type, op.kernel.type))
    window_of_op = ConvWindow(*map(ints, (op.strides, op.low, op.high, op.lhs_dilation, op.rhs_dilation)))
    spatial = [size[d] for d in layout.input_spatial], [taps[d] for d in layout.kernel_spatial]
    window = without_groups(window_of_op, *spatial)
    computed = list(shape)
    for dim, places in zip(layout.output_spatial, windowed_shape(*spatial, *window), strict=True):
        computed[dim] = places
    padding = np.array([window.low, window.high], np.int64).T.copy()  # one row (low, high) for each dimension
    numbers = hlo.ConvDimensionNumbers.get(
        input_batch_dimension=layout.input_batch,
        input_feature_dimension=layout.input_feature,
        input_spatial_dimensions=layout.input_spatial,
        kernel_input_feature_dimension=layout.kernel_in,
        kernel_output_feature_dimension=layout.kernel_out,
        kernel_spatial_dimensions=layout.kernel_spatial,
        output_batch_dimension=layout.output_batch,
        output_feature_dimension=layout.output_feature,
        output_spatial_dimensions=layout.output_spatial,
    )
    product = hlo.convolution(
        e.tensor(_accumulator(dtype), computed),
        x,
        # XLA:CPU uses its fast kernels only when the window is not reversed. Reversing the kernel is equivalent, and on
        # a TPU it is folded back.
        hlo.reverse(kernel, flipped) if flipped else kernel,
        numbers,
        feature_group_count=integer(op.feature_groups),
        batch_group_count=integer(op.batch_groups),
        window_strides=window.strides,
        padding=e.dense(padding, "i64", padding.shape),
        lhs_dilation=window.lhs_dilation,
        rhs_dilation=window.rhs_dilation,
        precision_config=_precision(e, op.precision.data),
    )
    if window is not window_of_op:
        product = hlo.slice(product, [0] * len(shape), shape, [1] * len(shape))
    return e.convert(product, dtype)
