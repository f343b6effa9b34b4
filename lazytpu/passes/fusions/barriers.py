"""Barriers against the fusion of XLA:CPU, shared by the passes that set them."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from lazytpu.ir.attention import AttentionBackwardOp, AttentionOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.collectives import CollectiveOp
from lazytpu.ir.constants import ConstantOp, DenseConstantOp
from lazytpu.ir.contractions import ConvolutionOp, DotGeneralOp
from lazytpu.ir.control import IfOp, WhileOp
from lazytpu.ir.indexing import ScatterOp
from lazytpu.ir.module import add_options
from lazytpu.ir.shape import BarrierOp
from lazytpu.ir.sorting import SortOp

KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
"Disables the pass of XLA:CPU that removes barriers before fusion (its name in jaxlib 0.10.2)."
KEEP_IN_LOOPS = {"xla_disable_hlo_passes": "cse_barrier_expander,small-while-loop-hoisting"}
"""Disables also the pass that compiles loops over little data by another emitter, which ignores barriers."""

UNFUSED = (
    *(CollectiveOp, DotGeneralOp, ConvolutionOp, ScatterOp, SortOp, AttentionOp, AttentionBackwardOp),
    *(IfOp, WhileOp),
    *(BarrierOp, ConstantOp, DenseConstantOp),
)
"Ops that are never fused into their users: their results are materialized anyway, or take no computation."


def keep_barriers(module: ModuleOp) -> None:
    """Set the options with which XLA:CPU keeps the barriers of a module."""
    loops = (op for op in module.walk() if isinstance(op, WhileOp))
    in_loops = any(isinstance(op, BarrierOp) for loop in loops for op in loop.walk())
    add_options(module, KEEP_IN_LOOPS if in_loops else KEEP_BARRIERS)


def set_barrier(block: Block, value: SSAValue) -> None:
    """Put a barrier between a value, defined by an op of `block`, and all its users."""
    producer = value.owner
    assert isinstance(producer, Operation)
    b = Builder(block, producer.next_op)
    with b.at(producer.location):
        barrier = b.barrier(value)
    value.replace_uses_with_if(barrier, lambda use: use.operation is not barrier.owner)
