"""Classifies the ops of a block as free or not, and numbers them by their computation.

Free ops belong to no part of a program: every part that needs one has a copy. They are

- constants, and elementwise ops on constants alone (an attention mask);
- run-time numbers, and scalars computed from them;
- broadcasts to a larger size;
- slices and reshapes of arguments.

Otherwise the first layer would differ from the others, because it would compute the values that all of them use, and
broadcasts would be kept in memory between parts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from xdsl.ir import Attribute, Block, BlockArgument, Operation

from lazytpu.ir.binary import BinaryOp
from lazytpu.ir.collectives import CollectiveOp, GroupRankOp
from lazytpu.ir.constants import ConstantOp, DenseConstantOp, IotaOp, NumberOp
from lazytpu.ir.pointwise import ClampOp, CompareOp, ConvertOp, SelectOp
from lazytpu.ir.shape import BroadcastInDimOp, ReshapeOp, SliceOp, TransposeOp
from lazytpu.ir.types import numel, shape_of
from lazytpu.ir.unary import UnaryOp
from lazytpu.passes.numbering import AttributeNumbers

POINTWISE = (UnaryOp, BinaryOp, CompareOp, SelectOp, ClampOp, ConvertOp)
VIEWS = (BroadcastInDimOp, ReshapeOp, SliceOp)
TABLE = 1024
"The most elements of a table that is copied to every cluster that reads it."
RECOMPUTE = "lazytpu.recompute"


def communicates(op: Operation) -> bool:
    """Whether devices exchange values in an op or its regions. It then is a cluster by itself."""
    return any(isinstance(inner, CollectiveOp) and not isinstance(inner, GroupRankOp) for inner in op.walk())


def _producers(op: Operation | None) -> list[Operation]:
    """The ops that define the operands of an op."""
    owners = [] if op is None else [operand.owner for operand in op.operands]
    return [owner for owner in owners if isinstance(owner, Operation)]


@dataclass
class Sorter:
    """The ops of a block, classified as free or not (`ops`)."""

    block: Block
    ops: list[Operation] = field(default_factory=list[Operation])
    free: set[Operation] = field(default_factory=set[Operation])
    closed: set[Operation] = field(default_factory=set[Operation])
    "Free ops that depend on no argument."
    scalars: set[Operation] = field(default_factory=set[Operation])
    "Free ops that are run-time numbers, or scalars computed from them."
    numbers: AttributeNumbers = field(default_factory=AttributeNumbers)
    returned: dict[Operation, None] = field(default_factory=dict[Operation, None])
    """Ops whose results the block returns; of the free ops only the ones that depend on no argument."""
    signatures: dict[Operation, int] = field(default_factory=dict[Operation, int])
    """A number for each op, equal for ops with the same computation on operands of the same types."""
    _by_signature: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    def __post_init__(self) -> None:
        self.returned.update(dict.fromkeys(_producers(self.block.last_op)))
        for op in self.block.ops:
            if op is self.block.last_op:
                continue
            if self._is_free(op):
                self.free.add(op)
            else:
                self.ops.append(op)
            self.signatures[op] = self._signature(op)

    def compared(self, op: Operation) -> Mapping[str, Attribute]:
        """Return the properties that an op's signature covers. It omits the index of a run-time number, which
        outline.py makes an argument."""
        return {} if op in self.scalars and isinstance(op, NumberOp) else op.properties

    def _is_free(self, op: Operation) -> bool:
        if op.attributes or not op.results:
            return False
        size = numel(shape_of(op.results[0]))
        if isinstance(op, (ConstantOp, IotaOp)) or (isinstance(op, DenseConstantOp) and size <= TABLE):
            self.closed.add(op)
            return True
        producers = [operand.owner for operand in op.operands]
        if op.operands and all(producer in self.closed for producer in producers):
            if isinstance(op, POINTWISE + VIEWS + (TransposeOp,)):
                self.closed.add(op)
                return True
            return False
        if op in self.returned:
            return False
        if self._is_scalar(op):
            self.scalars.add(op)
            return True
        if not isinstance(op, VIEWS):
            return False
        (viewed,) = op.operands
        grows = isinstance(op, BroadcastInDimOp) and size > numel(shape_of(viewed))
        return grows or isinstance(viewed, BlockArgument) or viewed.owner in self.free

    def _is_scalar(self, op: Operation) -> bool:
        if isinstance(op, NumberOp):
            return isinstance(op.pack, BlockArgument)
        of_scalars = all(operand.owner in self.scalars or operand.owner in self.closed for operand in op.operands)
        return of_scalars and isinstance(op, POINTWISE) and numel(shape_of(op.results[0])) == 1

    def _signature(self, op: Operation) -> int:
        """Return a number that covers the signatures of free operands, and only the types of others."""
        operands = [
            (0, self.signatures[operand.owner])
            if isinstance(operand.owner, Operation) and operand.owner in self.free
            else (1, self.numbers[operand.type])
            for operand in op.operands
        ]
        properties = [(name, self.numbers[value]) for name, value in sorted(self.compared(op).items())]
        attributes = [
            (name, -1 if name == RECOMPUTE else self.numbers[value]) for name, value in sorted(op.attributes.items())
        ]
        results = tuple(self.numbers[result.type] for result in op.results)
        key = (type(op), tuple(operands), tuple(properties), tuple(attributes), results, self.numbers.regions(op))
        return self._by_signature.setdefault(key, len(self._by_signature))
