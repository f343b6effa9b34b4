"""Matches dropout of probabilities as models write it: `native_dropout` and its gradient.

%keep = lazytpu.compare LT (24 random bits as a number below 1), (keep probability) %0 = lazytpu.mul %x,
lazytpu.convert(%keep) %1 = lazytpu.mul %0, lazytpu.broadcast_in_dim(%factor)      kept elements of x, times 1 / (1 - p)
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from lazytpu.ir.binary import MulOp, ShiftRightLogicalOp
from lazytpu.ir.pointwise import CompareOp, ConvertOp
from lazytpu.ir.random import RandomBitsOp
from lazytpu.ir.shape import BroadcastInDimOp
from lazytpu.ir.types import dtype_of, shape_of
from lazytpu.passes.patterns.rewriting import defined_by, splat


@dataclass(frozen=True)
class Dropped:
    """A dropout: `result` = `x` · `mask` · `factor`, with a 0-d factor, and the ops that compute it, `inside`."""

    x: SSAValue
    mask: SSAValue
    factor: SSAValue
    result: SSAValue
    inside: frozenset[Operation]


def dropped_from(op: MulOp, x: SSAValue) -> Dropped | None:
    """The dropout that begins with `op`, the product of `x` and a mask; None if there is none."""
    uses = list(op.results[0].uses)
    last = uses[0].operation if len(uses) == 1 else None
    dropout = dropped(last) if isinstance(last, MulOp) else None
    return dropout if dropout is not None and dropout.x is x else None


def dropped(op: MulOp) -> Dropped | None:
    """The dropout that ends with `op`, the product with the factor; None if there is none."""
    for product, factor in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        masked, broadcast = defined_by(product, MulOp), defined_by(factor, BroadcastInDimOp)
        if masked is None or broadcast is None or shape_of(broadcast.operands[0]) != ():
            continue
        for x, mask in ((masked.lhs, masked.rhs), (masked.rhs, masked.lhs)):
            number = defined_by(mask, ConvertOp)
            if number is not None and dtype_of(number.operands[0]) == "i1":
                inside = frozenset((op, masked, number))
                return Dropped(x, number.operands[0], broadcast.operands[0], op.results[0], inside)
    return None


def drawn(mask: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue] | None:
    """Return (keep probability, 0-d f32; seed; offset) of a dropout's mask; None for any other mask."""
    compared = defined_by(mask, CompareOp)
    if compared is None or compared.direction.data != "LT":
        return None
    scaled, broadcast = defined_by(compared.lhs, MulOp), defined_by(compared.rhs, BroadcastInDimOp)
    integer = None if scaled is None else defined_by(scaled.lhs, ConvertOp)
    upper = None if integer is None else defined_by(integer.operands[0], ShiftRightLogicalOp)
    bits = None if upper is None else defined_by(upper.lhs, RandomBitsOp)
    if scaled is None or broadcast is None or upper is None or bits is None or shape_of(broadcast.operands[0]) != ():
        return None
    if bits.index is not None:
        return None
    if dtype_of(broadcast.operands[0]) != "f32" or splat(scaled.rhs) != 2.0**-24 or splat(upper.rhs) != 8:
        return None
    return broadcast.operands[0], bits.seed, bits.offset
