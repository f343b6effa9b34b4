"""The core of the builder: creates ops, and sets their insertion point and source line."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

from xdsl.dialects.builtin import UNKNOWN_LOC, AnyTensorType, IntegerAttr, LocationAttr, i1, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lazytpu.ir.base import TensorOp
from lazytpu.ir.types import int_array


class Core:
    """Appends ops to a block, or inserts them before one of its ops."""

    def __init__(self, block: Block, before: Operation | None = None):
        self.block = block
        self.before = before
        self.location: LocationAttr = UNKNOWN_LOC

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
    ) -> TensorOp:
        """Build an op of class `kind` from operands, types and properties that are known to be consistent."""
        # Operation.create with interned types takes 10 us; the keyword constructors of xDSL's op classes take 40.
        op = kind.create(operands=operands, result_types=result_types, properties=properties, location=self.location)
        self.insert(op)
        return op

    def insert(self, op: TensorOp) -> None:
        """Put a new op where the builder builds."""
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


@lru_cache(maxsize=1024)
def integer_prop(value: int) -> IntegerAttr:
    return IntegerAttr(value, i64)


@lru_cache(maxsize=2)
def flag_prop(value: bool) -> IntegerAttr:
    return IntegerAttr(int(value), i1)


def array_props(lists: Mapping[str, Sequence[int]]) -> dict[str, Attribute]:
    """Properties that hold these lists of integers."""
    return {name: int_array(values) for name, values in lists.items()}
