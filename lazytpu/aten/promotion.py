"""Operands converted to one dtype and broadcast to one shape, as pointwise rules expect them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.scalars import Scalar
from lazytpu.ir.types import shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that `shapes` broadcast to. Raises ValueError, naming them, if they do not."""
    rank = max((len(s) for s in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[i] not in (1, size):
                    raise ValueError(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
                result[i] = size
    return tuple(result)


def promote(
    b: Builder, *args: SSAValue | Scalar, to: str, shape: tuple[int, ...] | None = None
) -> tuple[SSAValue, ...]:
    """Operands of a pointwise op: converted to dtype `to`, and broadcast to one shape (their own, or `shape`)."""
    values = [b.scalar(a, to) if isinstance(a, Scalar) else b.convert(a, to) for a in args]
    common = broadcast_shape(*map(shape_of, values)) if shape is None else shape
    return tuple(b.broadcast_to(v, common) for v in values)
