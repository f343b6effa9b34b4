"""Ops that only move elements. Each is a StableHLO op of the same name, with few exceptions."""

from __future__ import annotations

from xdsl.ir import Operation

from lazytpu.ir import shape as ops
from lazytpu.ir.base import integer
from lazytpu.ir.contractions import ConvolutionOp
from lazytpu.ir.template import TemplateOp
from lazytpu.ir.types import dtype_of, ints
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rewrites import hidden
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo


@lowers(ops.BroadcastInDimOp)
def broadcast_in_dim(e: Emission, op: ops.BroadcastInDimOp, x: ir.Value) -> ir.Value:
    return hlo.broadcast_in_dim(e.result(op), x, ints(op.dims))


@lowers(ops.ReshapeOp)
def reshape(e: Emission, op: ops.ReshapeOp, x: ir.Value) -> ir.Value:
    return e.create("stablehlo.reshape", [x], e.result(op))


@lowers(ops.TransposeOp)
def transpose(e: Emission, op: ops.TransposeOp, x: ir.Value) -> ir.Value:
    return hlo.transpose(x, ints(op.permutation))


@lowers(ops.SliceOp)
def slice_(e: Emission, op: ops.SliceOp, x: ir.Value) -> ir.Value:
    return hlo.slice(x, ints(op.starts), ints(op.limits), ints(op.strides))


@lowers(ops.PadOp)
def pad(e: Emission, op: ops.PadOp, x: ir.Value, value: ir.Value) -> ir.Value:
    padded = hlo.pad(x, value, ints(op.low), ints(op.high), ints(op.interior))
    if any(ints(op.interior)) and e.attribute("convolves", lambda: _convolves(op)):
        # XLA would make it a dilation of the convolution that takes it (lowering/convolution_window.py).
        return hidden(e, padded, dtype_of(op.result_type()))
    return padded


def _convolves(op: Operation) -> bool:
    """Whether the module of the op has a convolution."""
    return any(
        isinstance(candidate, ConvolutionOp)
        or (isinstance(candidate, TemplateOp) and candidate.template_name.data.startswith("convolution"))
        for candidate in op.get_toplevel_object().walk()
    )


@lowers(ops.ConcatenateOp)
def concatenate(e: Emission, op: ops.ConcatenateOp, *xs: ir.Value) -> ir.Value:
    return hlo.concatenate(xs, integer(op.dim))


@lowers(ops.ReverseOp)
def reverse(e: Emission, op: ops.ReverseOp, x: ir.Value) -> ir.Value:
    return hlo.reverse(x, ints(op.dims))


@lowers(ops.BarrierOp)
def barrier(e: Emission, op: ops.BarrierOp, x: ir.Value) -> ir.Value:
    return e.create("stablehlo.optimization_barrier", [x], e.result(op))
