"""Verification of modules that skips ops which are known to be valid.

Passes keep most ops, and the layers of a model repeat them. An op is skipped if an earlier one was valid whose validity
depends on the same objects: its class, the types of its operands and results, its properties and its size annotation.
Types and most properties are interned, so that equal ones are the same object. Ops with regions, terminators, ops of
other dialects and collectives, whose validity depends on the ops around them, and tables, which may be large, are
verified each time.
"""

from __future__ import annotations

from typing import Any

from xdsl.ir import Block, Operation

from lazytpu.ir.base import TensorOp
from lazytpu.ir.sizes import SIZES

MAX_VALID = 1 << 15
"""Number of descriptions that are kept."""
_VALID: dict[tuple[Any, ...], tuple[Any, ...]] = {}
"""The objects of each description, which keep their ids from being used again."""


def verify(module: Operation) -> None:
    """Raise what `Operation.verify` raises for an invalid module. `lazytpu.ir.dominance` checks the order of values."""
    for region in module.regions:
        for block in region.blocks:
            if block.parent is not region:
                raise ValueError("Parent pointer of block does not refer to containing region")
            _verify_block(block)
    module.verify(verify_nested_ops=False)


def _verify_block(block: Block) -> None:
    if block.first_op is None:
        block.verify()  # whether it may be empty
    for op in block.ops:
        if op.parent is not block:
            raise ValueError("Parent pointer of operation does not refer to containing region")
        if op.regions or op.next_op is None or not (isinstance(op, TensorOp) and op.LOCAL):
            verify(op)
            continue
        operands, properties = tuple(op.operands), op.properties
        objects = [value.type for value in operands]
        objects += [value.type for value in op.results]
        objects += properties.values()
        if SIZES in op.attributes:
            objects.append(op.attributes[SIZES])
        description = type(op), len(operands), *properties, *map(id, objects)
        if description not in _VALID:
            op.verify()
            if len(_VALID) >= MAX_VALID:
                _VALID.clear()
            _VALID[description] = tuple(objects)
