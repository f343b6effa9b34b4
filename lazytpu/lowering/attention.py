"""Attention ops, which a pass replaces before a module is emitted."""

from __future__ import annotations

from lazytpu.ir import attention as ops
from lazytpu.lowering.emission import Emission
from lazytpu.lowering.rules import lowers
from lazytpu.runtime.xla.mlir import ir


@lowers(ops.AttentionOp)
@lowers(ops.AttentionBackwardOp)
def attention(e: Emission, op: ops.AttentionOp | ops.AttentionBackwardOp, *operands: ir.Value) -> ir.Value:
    raise ValueError("attention must be decomposed before a module is emitted: run decompose-attention first")
