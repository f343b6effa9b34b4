"""Matrices in the last two dimensions: their parts and products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.promotion import broadcast_shape
from lazytpu.ir.types import dtype_of, is_complex, shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def transposed(b: Builder, x: SSAValue) -> SSAValue:
    """x with its last two dimensions swapped."""
    rank = len(shape_of(x))
    return b.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def adjoint(b: Builder, x: SSAValue) -> SSAValue:
    """The conjugate transpose."""
    x = transposed(b, x)
    return b.binary("complex", b.unary("real", x), b.neg(b.unary("imag", x))) if is_complex(dtype_of(x)) else x


def triangle(b: Builder, x: SSAValue, *, upper: bool, unit: bool = False) -> SSAValue:
    """One triangle of x, zeros elsewhere; `unit` puts ones on the diagonal."""
    shape = shape_of(x)
    row, column = (b.iota("i32", shape, len(shape) - k) for k in (2, 1))
    half = b.select(b.compare("GE" if upper else "LE", column, row), x, full(b, 0, x))
    return b.select(b.compare("EQ", column, row), full(b, 1, x), half) if unit else half


def part(b: Builder, x: SSAValue, rows: int, columns: int) -> SSAValue:
    """The leading rows and columns of x."""
    batch = shape_of(x)[:-2]
    return b.slice(x, [0] * len(shape_of(x)), [*batch, rows, columns])


def diagonal(b: Builder, x: SSAValue) -> SSAValue:
    """(…, k): the elements on the diagonal of (…, m, n)."""
    shape = shape_of(x)
    k = min(shape[-2:])
    square = part(b, x, k, k)
    row, column = (b.iota("i32", shape_of(square), len(shape) - d) for d in (2, 1))
    only = b.select(b.compare("EQ", row, column), square, full(b, 0, square))
    return b.reduce("add", only, [len(shape) - 1])


def identity(b: Builder, like: SSAValue) -> SSAValue:
    """Ones on the diagonal, in the shape and dtype of `like`."""
    return triangle(b, full(b, 0, like), upper=True, unit=True)


def batch_of(*values: SSAValue) -> tuple[int, ...]:
    """The broadcast of all batch dimensions."""
    return broadcast_shape(*(shape_of(v)[:-2] for v in values))


def product(b: Builder, x: SSAValue, y: SSAValue) -> SSAValue:
    """x y; batch dimensions are broadcast."""
    batch = batch_of(x, y)
    x, y = (b.broadcast_to(v, [*batch, *shape_of(v)[-2:]]) for v in (x, y))
    dims = list(range(len(batch)))
    return b.dot_general(x, y, dims, dims, [len(batch) + 1], [len(batch)])
