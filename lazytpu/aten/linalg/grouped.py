"""Products of groups of rows, of columns, or of what a sum runs over, each with a matrix of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lazytpu.aten.linalg.contractions import bmm
from lazytpu.aten.pointwise.operands import full
from lazytpu.aten.registry import rule
from lazytpu.ir.types import shape_of

if TYPE_CHECKING:
    from xdsl.ir import SSAValue

    from lazytpu.ir.builder import Builder


def _ends(b: Builder, ends: SSAValue, length: int) -> SSAValue:
    """Return the ends of the groups, of which those after the last element are moved to it, as torch's slices are.
    Check that they ascend."""
    (count,) = shape_of(ends)
    starts = b.pad(b.slice(ends, [0], [count - 1]), b.constant(0, "i32"), [1], [0])
    message = "offs must be ascending and not negative: each is the end of a group, and the start of the next"
    b.check(b.compare("GE", ends, starts), message, error="RuntimeError")
    return b.binary("min", ends, full(b, length, ends))


@rule("aten._grouped_mm.default")
def grouped_mm(
    b: Builder,
    self: SSAValue,
    mat2: SSAValue,
    offs: SSAValue | None = None,
    bias: None = None,
    out_dtype: Any = None,
) -> SSAValue:
    """The product of each group with its matrix: of rows of `self`, of columns of `mat2`, or of both along the sum."""
    if offs is None:
        return bmm(b, self, mat2)
    dtype, shape = b.out[0]
    if 0 in (*shape_of(self), *shape_of(mat2), *shape):
        return b.constant(0, dtype, shape)
    precision = {"precision": b.precision}
    if len(shape) == 3:
        rows, operands = min(shape_of(self)[1], shape_of(mat2)[0]), (b.transpose(self, [1, 0]), mat2)
        if shape_of(self)[1] != shape_of(mat2)[0]:
            message = f"mat1 and mat2 shapes cannot be multiplied: offs has the end of a group after element {rows}"
            b.check(b.compare("LE", offs, full(b, rows, offs)), message, error="RuntimeError")
        left, right = (b.slice(x, [0, 0], [rows, shape_of(x)[1]]) for x in operands)
        ends = _ends(b, offs, rows)
        return b.template("grouped_sums", [left, right, ends], [(dtype, shape)], **precision)[0]
    if len(shape_of(self)) == 2:
        ends = _ends(b, offs, shape[0])
        return b.template("grouped_rows", [self, mat2, ends], [(dtype, shape)], **precision)[0]
    rows, matrices = b.transpose(mat2, [1, 0]), b.transpose(self, [0, 2, 1])
    ends = _ends(b, offs, shape[1])
    transposed = b.template("grouped_rows", [rows, matrices, ends], [(dtype, shape[::-1])], **precision)[0]
    return b.transpose(transposed, [1, 0])
