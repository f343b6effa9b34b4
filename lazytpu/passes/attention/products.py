"""Products with named dimensions, for matching attention.

Scores, and values of their shape, are [batch dims..., queries, keys]; models merge and split the batch dims by reshapes
that leave the last two alone. A product of such a value with vectors is characterized by the dimension it sums over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.ir.contractions import DotGeneralOp
from lazytpu.ir.pointwise import ConvertOp
from lazytpu.ir.shape import ReshapeOp, TransposeOp
from lazytpu.ir.types import dtype_of, ints, is_float, numel, shape_of

Name: TypeAlias = int | str
"The number of a batch dimension, `q` or `k` for queries or keys, `e` for the width of a head."


@dataclass(frozen=True)
class Vectors:
    """A tensor that holds one vector for each query or key, with the `names` of its dimensions."""

    value: SSAValue
    names: tuple[Name, ...]

    def order(self, last: Sequence[Name]) -> list[int]:
        """The permutation to (batch dims..., *last)."""
        batch = sorted(name for name in self.names if isinstance(name, int))
        return [self.names.index(name) for name in (*batch, *last)]

    def by_heads(self, b: Builder, of: str, batch: int, heads: int) -> SSAValue:
        """As [batch, heads, `of`, width]."""
        ordered = b.transpose(self.value, self.order((of, "e")))
        return b.reshape(ordered, (batch, heads, *shape_of(ordered)[-2:]))


@dataclass(frozen=True)
class ScoresProduct:
    """A product of a tensor of the shape of the scores with `other`."""

    op: DotGeneralOp
    other: Vectors
    names: tuple[Name, ...]
    "The dimensions of the result."
    over: str
    "The dimension that is summed over: `q` or `k`."

    def from_heads(self, b: Builder, x: SSAValue) -> SSAValue:
        """[batch, heads, rows, width] in the dimension order and dtype of the op's result."""
        result = self.op.results[0]
        rows = "q" if self.over == "k" else "k"
        order = Vectors(result, self.names).order((rows, "e"))
        shape = shape_of(result)
        x = b.reshape(x, [shape[i] for i in order])
        return b.convert(b.transpose(x, [order.index(i) for i in range(len(order))]), dtype_of(result))


def scores_of(op: DotGeneralOp) -> tuple[Vectors, Vectors] | None:
    """(query, key) of a product whose result is [batch dims..., queries, keys]; None for any other product."""
    batch, of_key = ints(op.lhs_batch), ints(op.rhs_batch)
    if len(shape_of(op.results[0])) != len(batch) + 2 or len(ints(op.lhs_contract)) != 1:
        return None
    sides: list[Vectors] = []
    for value, dims, contract, free in (
        (op.lhs, batch, ints(op.lhs_contract), "q"),
        (op.rhs, of_key, ints(op.rhs_contract), "k"),
    ):
        if len(shape_of(value)) != len(batch) + 2:
            return None
        names: list[Name] = [free] * len(shape_of(value))
        names[contract[0]] = "e"
        for number, dim in enumerate(dims):
            names[dim] = number
        sides.append(Vectors(value, tuple(names)))
    return sides[0], sides[1]


def product_with(op: DotGeneralOp, scores: SSAValue) -> ScoresProduct | None:
    """`op` as a product of `scores`, one of its operands, of the shape of scores, with vectors; None if it is not."""
    left = op.lhs is scores
    if op.lhs is op.rhs:
        return None
    vectors = op.rhs if left else op.lhs
    scores_dims = ints(op.lhs_batch), ints(op.lhs_contract)
    other_dims = ints(op.rhs_batch), ints(op.rhs_contract)
    if not left:
        scores_dims, other_dims = other_dims, scores_dims
    (scores_batch, scores_contract), (other_batch, other_contract) = scores_dims, other_dims
    rank = len(shape_of(scores))
    if sorted(scores_batch) != list(range(rank - 2)) or len(scores_contract) != 1 or len(shape_of(vectors)) != rank:
        return None
    over, rows = ("q", "k") if scores_contract[0] == rank - 2 else ("k", "q")
    names: list[Name] = ["e"] * rank
    names[other_contract[0]] = over
    for number, dim in zip(scores_batch, other_batch, strict=True):
        names[dim] = number
    batch: list[Name] = [*scores_batch]
    return ScoresProduct(op, Vectors(vectors, tuple(names)), (*batch, *((rows, "e") if left else ("e", rows))), over)


def is_view(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a reshape between these shapes only merges and splits batch dims."""
    return len(shape) >= 2 and len(other) >= 2 and tuple(shape[-2:]) == tuple(other[-2:])


def source(x: SSAValue) -> SSAValue:
    """The value before any float conversions and views of the batch dims."""
    while True:
        owner = x.owner
        converts = isinstance(owner, ConvertOp) and is_float(dtype_of(owner.operands[0])) and is_float(dtype_of(x))
        views = isinstance(owner, ReshapeOp) and is_view(shape_of(owner.operands[0]), shape_of(x))
        if not converts and not views:
            return x
        assert isinstance(owner, ConvertOp | ReshapeOp)
        x = owner.operands[0]


def same(x: Vectors, y: Vectors) -> bool:
    """Whether two tensors hold the same vectors: one value, whatever the order and grouping of dimensions."""
    return x == y or _strided(x) == _strided(y)


def _strided(x: Vectors) -> tuple[SSAValue, list[tuple[int, int]]]:
    """The value before the reshapes and transposes that led to `x`, and the (size, stride) in its memory of each
    dimension of `x`, in the order (batch dims..., rows, width). A reshape keeps the row-major index of each element,
    and so the strides."""
    (rows,) = (name for name in x.names if name in ("q", "k"))
    sizes, strides = shape_of(x.value), _strides(shape_of(x.value))
    pieces = [(sizes[i], strides[i]) for i in x.order((rows, "e"))]
    value = x.value
    while isinstance(value.owner, ReshapeOp | TransposeOp):
        if isinstance(value.owner, TransposeOp):
            moved = _transposed(pieces, value.owner)
            if moved is None:
                break
            pieces = moved
        value = value.owner.operands[0]
    return value, _merged(pieces)


def _strides(shape: Sequence[int]) -> list[int]:
    return [numel(shape[i + 1 :]) for i in range(len(shape))]


def _transposed(pieces: Sequence[tuple[int, int]], op: TransposeOp) -> list[tuple[int, int]] | None:
    """Pieces, (size, stride), of the result as pieces of the operand; None when one is not aligned with dimensions."""
    sizes, moved = shape_of(op.results[0]), list[tuple[int, int]]()
    result_strides, operand_strides = _strides(sizes), _strides(shape_of(op.operands[0]))
    todo = [piece for piece in pieces if piece[0] > 1]
    while todo:
        size, stride = todo.pop(0)
        dim = next(i for i in range(len(result_strides)) if result_strides[i] <= stride and sizes[i] > 1)
        if stride % result_strides[dim] or sizes[dim] * result_strides[dim] % stride:
            return None
        inner = sizes[dim] * result_strides[dim] // stride
        if size > inner:  # the piece extends into the dimension before
            if size % inner:
                return None
            todo[:0] = [(size // inner, stride * inner), (inner, stride)]
        else:
            moved.append((size, stride // result_strides[dim] * operand_strides[ints(op.permutation)[dim]]))
    return moved


def _merged(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for size, stride in pieces:
        if merged and merged[-1][1] == size * stride:
            size *= merged.pop()[0]
        if size > 1:
            merged.append((size, stride))
    return merged
