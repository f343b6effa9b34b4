"""The core of the builder: creates ops, and sets their insertion point and source line.

The builder of a region is nested in the builder of its op: `outer`. Regions are isolated. So a value from outside that
an op in the region reads becomes an argument of the region, and finally an operand of the op: it is *captured*.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Self

from xdsl.dialects.builtin import UNKNOWN_LOC, AnyTensorType, IntegerAttr, LocationAttr, i1, i64
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue

from lazytpu.ir.base import TensorOp
from lazytpu.ir.constants import ConstantOp, DenseConstantOp
from lazytpu.ir.types import int_array


class Core:
    """Appends ops to a block, or inserts them before one of its ops."""

    def __init__(self, block: Block, before: Operation | None = None):
        self.block = block
        self.before = before
        self.location: LocationAttr = UNKNOWN_LOC
        self.outer: Self | None = None
        """The builder of the block that contains the region's op."""
        self.identities = False
        """Whether to build reshapes, slices, pads and broadcasts that change nothing, instead of omitting them."""
        self.captured: dict[SSAValue, BlockArgument] = {}
        """Values from outside the region -> the arguments that replace them."""
        self._copied: dict[SSAValue, SSAValue] = {}

    @contextmanager
    def at(self, location: LocationAttr) -> Generator[None]:
        """Ops that are built inside the `with` block carry `location`, the user's source line."""
        outer, self.location = self.location, location
        try:
            yield
        finally:
            self.location = outer

    def op(
        self,
        kind: type[TensorOp],
        operands: Sequence[SSAValue],
        result_types: Sequence[AnyTensorType],
        properties: Mapping[str, Attribute] = {},
        regions: Sequence[Region] = (),
    ) -> TensorOp:
        """Build an op of class `kind` from operands, types and properties that must be consistent."""
        if self.outer is not None:
            operands = [self.local(value) for value in operands]
        # Operation.create with interned types takes 10 us; the keyword constructors of xDSL's op classes take 40.
        op = kind.create(
            operands=operands,
            result_types=result_types,
            properties=properties,
            location=self.location,
            regions=regions,
        )
        self.insert(op)
        return op

    def insert(self, op: TensorOp) -> None:
        """Insert a new op at the insertion point."""
        if self.before is None:
            self.block.add_op(op)
        else:
            self.block.insert_op_before(op, self.before)

    def one(
        self,
        kind: type[TensorOp],
        operands: Sequence[SSAValue],
        result_type: AnyTensorType,
        properties: Mapping[str, Attribute] = {},
    ) -> SSAValue:
        """Build an op with one result, and return the result."""
        return self.op(kind, operands, (result_type,), properties).results[0]

    def local(self, value: SSAValue) -> SSAValue:
        """Return the value as visible in this builder's block: itself, or the argument that replaces a value from
        outside the region. A constant from outside is cloned into the region, so that passes can see its value."""
        owner = value.owner
        if self.outer is None or (owner if isinstance(owner, Block) else owner.parent) is self.block:
            return value
        if isinstance(owner, ConstantOp | DenseConstantOp):
            if value not in self._copied:
                copy = owner.clone()
                self.block.add_op(copy)
                self._copied[value] = copy.results[0]
            return self._copied[value]
        if value not in self.captured:
            self.captured[value] = self.block.insert_arg(value.type, len(self.block.args))
        return self.captured[value]


@lru_cache(maxsize=1024)
def integer_prop(value: int) -> IntegerAttr:
    return IntegerAttr(value, i64)


@lru_cache(maxsize=2)
def flag_prop(value: bool) -> IntegerAttr:
    return IntegerAttr(int(value), i1)


def array_props(lists: Mapping[str, Sequence[int]]) -> dict[str, Attribute]:
    """Return properties for these lists of integers."""
    return {name: int_array(values) for name, values in lists.items()}
