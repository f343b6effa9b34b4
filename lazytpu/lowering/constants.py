"""Constants, iotas, and the run-time numbers of a pack."""

from __future__ import annotations

import numpy as np

from lazytpu.ir import constants as ops
from lazytpu.ir.base import integer
from lazytpu.ir.types import dtype_of, numpy_dtype, shape_of
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.mlir import stablehlo as hlo


@lowers(ops.ConstantOp)
def constant(e: Emission, op: ops.ConstantOp) -> ir.Value:
    return e.constant(ops.number_of(op.value), dtype_of(op.result_type()), shape_of(op.result_type()))


@lowers(ops.DenseConstantOp)
def dense_constant(e: Emission, op: ops.DenseConstantOp) -> ir.Value:
    dtype, shape = dtype_of(op.result_type()), shape_of(op.result_type())
    table = np.frombuffer(bytes.fromhex(op.data.data), numpy_dtype(dtype))
    return hlo.constant(e.dense(table, dtype, shape))


@lowers(ops.IotaOp)
def iota(e: Emission, op: ops.IotaOp) -> ir.Value:
    return hlo.iota(e.result(op), integer(op.dim))


@lowers(ops.NumberOp)
def number(e: Emission, op: ops.NumberOp, pack: ir.Value) -> ir.Value:
    index = integer(op.index)
    return hlo.reshape(e.result(op), hlo.slice(pack, [index], [index + 1], [1]))
