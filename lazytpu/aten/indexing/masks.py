"""Positions of the true elements of a mask, in a program whose shapes are static."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from lazytpu.ir.types import shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def ranks(b: Builder, mask: SSAValue) -> SSAValue:
    """How many true elements a flat mask has before each element, itself included (i32)."""
    return b.cumulative("add", b.convert(mask, "i32"), 0)


def flat_positions(b: Builder, mask: SSAValue, found: int) -> SSAValue:
    """Row-major positions (i32) of the `found` true elements of `mask`: each is scattered to its rank, the others
    past the end, where they are left out."""
    size = prod(shape_of(mask))
    flat = b.reshape(mask, [size])
    slot = b.sub(ranks(b, flat), b.constant(1, "i32", [size]))
    slot = b.select(flat, slot, b.constant(found, "i32", [size]))
    return b.scatter(
        b.constant(0, "i32", [found]),
        slot,
        b.iota("i32", [size], 0),
        kind="set",
        update_window_dims=[],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        index_vector_dim=1,
    )
