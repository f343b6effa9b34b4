"""What passes that set barriers for the CPU's compiler share."""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from lazytpu.ir.attention import AttentionBackwardOp, AttentionOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.collectives import CollectiveOp
from lazytpu.ir.constants import ConstantOp, DenseConstantOp
from lazytpu.ir.contractions import ConvolutionOp, DotGeneralOp
from lazytpu.ir.indexing import ScatterOp
from lazytpu.ir.shape import BarrierOp
from lazytpu.ir.sorting import SortOp

KEEP_BARRIERS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
"What the pass of XLA:CPU that takes barriers out, before it fuses, calls itself (jaxlib 0.10.2)."

ALONE = (
    *(CollectiveOp, DotGeneralOp, ConvolutionOp, ScatterOp, SortOp, AttentionOp, AttentionBackwardOp),
    *(BarrierOp, ConstantOp, DenseConstantOp),
)
"Ops whose results are there in full, whatever is done with them, or are nothing to compute."


def set_barrier(block: Block, value: SSAValue) -> None:
    """Let whatever uses a value that an op of `block` computes take it from behind a barrier."""
    maker = value.owner
    assert isinstance(maker, Operation)
    b = Builder(block, maker.next_op)
    with b.at(maker.location):
        behind = b.barrier(value)
    value.replace_uses_with_if(behind, lambda use: use.operation is not behind.owner)
