"""Barriers against the fusion of XLA:CPU, shared by the passes that set them."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from lazytpu.ir.attention import AttentionBackwardOp, AttentionOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.collectives import CollectiveOp
from lazytpu.ir.constants import ConstantOp, DenseConstantOp
from lazytpu.ir.contractions import ConvolutionOp, DotGeneralOp
from lazytpu.ir.control import IfOp, WhileOp
from lazytpu.ir.indexing import ScatterOp
from lazytpu.ir.shape import BarrierOp
from lazytpu.ir.sorting import SortOp

KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
"Disables the pass of XLA:CPU that removes barriers before fusion (its name in jaxlib 0.10.2)."

UNFUSED = (
    *(CollectiveOp, DotGeneralOp, ConvolutionOp, ScatterOp, SortOp, AttentionOp, AttentionBackwardOp),
    *(IfOp, WhileOp),
    *(BarrierOp, ConstantOp, DenseConstantOp),
)
"Ops that are never fused into their users: their results are materialized anyway, or take no computation."


def set_barrier(block: Block, value: SSAValue) -> None:
    """Put a barrier between a value, defined by an op of `block`, and all its users."""
    producer = value.owner
    assert isinstance(producer, Operation)
    b = Builder(block, producer.next_op)
    with b.at(producer.location):
        barrier = b.barrier(value)
    value.replace_uses_with_if(barrier, lambda use: use.operation is not barrier.owner)
