"""Positions of the true elements of a mask, in a program whose shapes are static."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from lazytpu.ir.types import shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def ranks(b: Builder, mask: SSAValue) -> SSAValue:
    """The running count (i32) of true elements in a flat mask, each element included."""
    return b.cumulative("add", b.convert(mask, "i32"), 0)


def flat_positions(b: Builder, mask: SSAValue, count: int) -> SSAValue:
    """Row-major positions (i32) of the `count` true elements of `mask`. Each position is scattered to its rank;
    positions of false elements go out of bounds and are dropped."""
    size = prod(shape_of(mask))
    flat = b.reshape(mask, [size])
    slot = b.sub(ranks(b, flat), b.constant(1, "i32", [size]))
    slot = b.select(flat, slot, b.constant(count, "i32", [size]))
    return b.scatter(
        b.constant(0, "i32", [count]),
        slot,
        b.iota("i32", [size], 0),
        kind="set",
        update_window_dims=[],
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        index_vector_dim=1,
    )
