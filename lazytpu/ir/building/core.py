"""The part of the builder that makes ops: where they go and which source line they carry."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache

from xdsl.dialects.builtin import UNKNOWN_LOC, AnyTensorType, IntegerAttr, LocationAttr, i1, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from lazytpu.ir.base import TensorOp
from lazytpu.ir.types import int_array


class Core:
    """Appends ops to a block, or inserts them before an op of it."""

    def __init__(self, block: Block, before: Operation | None = None):
        self.block = block
        self.before = before
        self.location: LocationAttr = UNKNOWN_LOC

    @contextmanager
    def at(self, location: LocationAttr) -> Generator[None]:
        """Ops built inside carry `location` (the user's source line)."""
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
        """Builds an op of class `kind` from parts that are known to agree."""
        # Operation.create with interned types takes 10 us; the keyword constructors of xDSL's op classes take 40.
        made = kind.create(operands=operands, result_types=result_types, properties=properties, location=self.location)
        if self.before is None:
            self.block.add_op(made)
        else:
            self.block.insert_op_before(made, self.before)
        return made

    def one(
        self,
        kind: type[TensorOp],
        operands: Sequence[SSAValue],
        result_type: AnyTensorType,
        properties: Mapping[str, Attribute] = {},
    ) -> SSAValue:
        """Builds an op with one result, and returns that."""
        return self.op(kind, operands, (result_type,), properties).results[0]


@lru_cache(maxsize=1024)
def integer_prop(value: int) -> IntegerAttr:
    return IntegerAttr(value, i64)


@lru_cache(maxsize=2)
def flag_prop(value: bool) -> IntegerAttr:
    return IntegerAttr(int(value), i1)


def array_props(lists: Mapping[str, Sequence[int]]) -> dict[str, Attribute]:
    """Lists of integers as properties."""
    return {name: int_array(values) for name, values in lists.items()}
