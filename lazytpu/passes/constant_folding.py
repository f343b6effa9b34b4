"""`constant-folding`: evaluate ops whose operands are constants.

    %0 = lazytpu.constant 3.0 : tensor<8x8xf32>
    %1 = lazytpu.constant 4.0 : tensor<8x8xf32>     ->     %2 = lazytpu.constant 12.0 : tensor<8x8xf32>
    %2 = lazytpu.mul %0, %1 : tensor<8x8xf32>

Elementwise ops on splats fold at any size, since they compute one number; other ops fold only to results of at most
`limit` elements, because a table is part of the program's text and of its compiled code.

Needs: nothing. Guarantees: a folded value has the bits that the op computes in its own dtype by IEEE 754 arithmetic
(`folding.py` has the rules and their exceptions). Results that implementations compute differently are left to the
backend, for constants and data alike: functions like exp, and a NaN from arithmetic, whose sign depends on the
processor. A NaN that is only moved, selected or negated keeps its bits.

One forward walk suffices, since operands come before their users.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter

from lazytpu.ir.base import TensorOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import ConstantOp, DenseConstantOp
from lazytpu.ir.literals import scalar, to_bytes
from lazytpu.ir.types import FLOATS8, Shape, dtype_of, numel, numpy_dtype, shape_of
from lazytpu.passes.errors import note_op
from lazytpu.passes.folding import ELEMENTWISE, EXACT, MOVES
from lazytpu.passes.patterns.rewriting import replace, splat


@dataclass(frozen=True)
class ConstantFoldingPass(ModulePass):
    """Folds ops on constants into constants of at most `limit` elements."""

    name = "constant-folding"

    limit: int = 256

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for region in op.regions:
            for block in region.blocks:
                self._fold_block(block)

    def _fold_block(self, block: Block) -> None:
        for op in list(block.ops):
            for region in op.regions:
                for inner in region.blocks:
                    self._fold_block(inner)
            if isinstance(op, TensorOp) and op.operands and all(is_constant(x.owner) for x in op.operands):
                try:
                    self._fold(op)
                except Exception as error:
                    note_op(error, op)
                    raise

    def _fold(self, op: TensorOp) -> None:
        if any(dtype_of(value) in FLOATS8 for value in (*op.operands, *op.results)):
            return  # numpy converts them differently than `lowering/float8.py`
        small = all(numel(shape_of(value)) <= self.limit for value in (*op.operands, *op.results))
        splats = all(isinstance(x.owner, ConstantOp) for x in op.operands)
        elementwise, move = ELEMENTWISE.get(type(op)), MOVES.get(type(op))
        folded: NDArray[Any] | None = None
        with np.errstate(all="ignore"):
            if elementwise and splats:
                folded = elementwise(op, *(array_of(x.owner, one=True) for x in op.operands))
            elif small and (rule := elementwise or move):
                folded = rule(op, *(array_of(x.owner) for x in op.operands))
        if folded is not None:
            dtype, shape = dtype_of(op.results[0]), shape_of(op.results[0])
            values = folded.astype(numpy_dtype(dtype), copy=False)
            one = elementwise is not None and splats
            if (type(op) not in EXACT and _has_nan(values)) or (one and not _fits(values, dtype)):
                return
            replace(op, PatternRewriter(op), lambda b: _constant(b, values, dtype, shape, one))


def _has_nan(values: NDArray[Any]) -> bool:
    return values.dtype.kind not in "biu" and bool(np.any(values != values))


def _fits(values: NDArray[Any], dtype: str) -> bool:
    """Whether a splat holds the bits of the only number: a Python float is never a signaling NaN."""
    return to_bytes(scalar(values[0].item(), dtype)) == values[:1].tobytes()


def _constant(b: Builder, values: NDArray[Any], dtype: str, shape: Shape, one: bool) -> SSAValue:
    """Build a constant of these values; with `one`, a splat of their only number."""
    return b.constant(values[0].item(), dtype, shape) if one else b.array(values.reshape(shape), dtype)


def is_constant(op: Operation | Block) -> bool:
    return isinstance(op, ConstantOp | DenseConstantOp)


def array_of(op: Operation | Block, one: bool = False) -> NDArray[Any]:
    """The elements of a constant; with `one`, only the number of a splat, as a 1-D array."""
    if isinstance(op, DenseConstantOp):
        kind = numpy_dtype(dtype_of(op.results[0]))
        return np.frombuffer(bytes.fromhex(op.data.data), kind).reshape(shape_of(op.results[0]))
    assert isinstance(op, ConstantOp)
    number = splat(op.results[0])
    shape = (1,) if one else shape_of(op.results[0])
    return np.full(shape, number, numpy_dtype(dtype_of(op.results[0])))
