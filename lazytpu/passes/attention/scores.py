"""Matches the scores of attention as models write them: query·keyᵀ, scaled and masked, and their softmax."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from xdsl.ir import Operation, SSAValue

from lazytpu.ir.binary import AddOp, DivOp, MulOp, SubOp
from lazytpu.ir.contractions import DotGeneralOp
from lazytpu.ir.pointwise import ConvertOp, SelectOp
from lazytpu.ir.reductions import ReduceOp
from lazytpu.ir.shape import BroadcastInDimOp, ReshapeOp
from lazytpu.ir.types import ints, shape_of
from lazytpu.ir.unary import ExpOp
from lazytpu.passes.attention.masks import Reader, Visible, sees_a_key, through
from lazytpu.passes.attention.products import Vectors, is_view, scores_of
from lazytpu.passes.patterns.rewriting import defined_by, splat

HIDING = -1e4
"A score that is this low, or lowered by this much, has weight exp(-1e4) = 0 beside any other."
ERASING = -1e30
"Rounding removes any score that this is added to."


@dataclass
class Scores:
    """The softmax of scores, and the parts that it is computed from."""

    probabilities: DivOp
    product: DotGeneralOp
    query: Vectors
    key: Vectors
    visible: Visible
    scale: float
    factor: SSAValue | None
    "A run-time number that scales the scores too."
    divides: bool
    "Whether the scores are divided by `factor`, rather than multiplied."
    masks: set[SSAValue] = field(default_factory=set[SSAValue])
    "The conditions of the selects among `inside`."
    inside: set[Operation] = field(default_factory=set[Operation])
    "The ops from the product to the probabilities."
    hiding: list[tuple[float, bool]] = field(default_factory=list[tuple[float, bool]])
    "For each mask, the number that hides a score, and whether it is added to the score, rather than replacing it."

    bias: SSAValue | None = None
    "A tensor that is added to the scores."

    @property
    def hidden(self) -> str | None:
        """The result of a query that sees no key, as in the attention ops; None when they cannot express it."""
        numbers, added = {number for number, _ in self.hiding}, [number for number, added in self.hiding if added]
        if self.bias is not None:  # may be -inf
            return "nan" if numbers <= {-inf} and not self.visible.keys and self.visible.stored is None else None
        if sees_a_key(self.visible, *self.shape[-2:]):
            return "zeros"
        if numbers == {-inf}:
            return "nan"
        if len(numbers) == 1 and (not added or (len(self.hiding) == 1 and added[0] <= ERASING)):
            return "mean"
        return None

    @property
    def shape(self) -> tuple[int, ...]:
        """[batch dims..., queries, keys]."""
        return shape_of(self.probabilities.results[0])


def scores(op: DivOp) -> Scores | None:
    """The scores whose softmax over the last axis ends in `op`; None if there are none."""
    inside: set[Operation] = {op}
    masks: set[SSAValue] = set()
    top = _softmax(op, inside)
    if top is None:
        return None
    reader, scale, factor, divides = Reader(len(shape_of(top))), 1.0, None, False
    hiding: list[tuple[float, bool]] = []
    bias: SSAValue | None = None
    x = top
    while (owner := x.owner) and not isinstance(owner, DotGeneralOp):
        if isinstance(owner, ConvertOp) or (
            isinstance(owner, ReshapeOp) and is_view(shape_of(owner.operands[0]), shape_of(x))
        ):
            following = owner.operands[0]
        elif isinstance(owner, MulOp | DivOp) and (number := scaling(owner)) is not None:
            following, by = number
            if isinstance(by, SSAValue):
                if factor is not None:
                    return None
                factor, divides = by, isinstance(owner, DivOp)
            else:
                scale = scale / by if isinstance(owner, DivOp) else scale * by
        elif isinstance(owner, AddOp | SelectOp):
            if isinstance(owner, SelectOp):
                masks.add(owner.operands[0])
            if shape_of(x) != shape_of(top) or factor is not None:
                return None
            if (unmasked := _unmasked(owner, reader)) is not None and unmasked[1] * scale <= HIDING:
                following = unmasked[0]
                hiding.append((unmasked[1] * scale, isinstance(owner, AddOp)))
            elif isinstance(owner, AddOp) and unmasked is None and bias is None and scale == 1.0:
                if (biased := _scores_and_bias(owner)) is None:
                    return None
                following, bias = biased
            else:
                return None
        else:
            return None
        inside.add(owner)
        x = following
    product = defined_by(x, DotGeneralOp)
    sides = None if product is None else scores_of(product)
    if product is None or sides is None:
        return None
    inside.add(product)
    return Scores(op, product, *sides, reader.visible, scale, factor, divides, masks, inside, hiding, bias)


def _softmax(op: DivOp, inside: set[Operation]) -> SSAValue | None:
    """The operand x of a softmax over the last axis, exp(x - max x) / Σ exp(x - max x); None if `op` ends none."""
    exp = defined_by(op.lhs, ExpOp)
    total = None if exp is None else row(op.rhs, "add")
    if exp is None or total is None or total[0] is not exp.results[0]:
        return None
    shifted = defined_by(exp.operands[0], SubOp)
    largest = None if shifted is None else row(shifted.rhs, "max", "peak")
    if shifted is None or largest is None or largest[0] is not shifted.lhs:
        return None
    inside |= {exp, shifted, *total[1], *largest[1]}
    return shifted.lhs


def row(x: SSAValue, *kinds: str) -> tuple[SSAValue, tuple[Operation, ...]] | None:
    """(the value that is reduced over its last axis and broadcast along it to give `x`, those two ops)."""
    broadcast = defined_by(x, BroadcastInDimOp)
    reduced = None if broadcast is None else defined_by(broadcast.operands[0], ReduceOp)
    if broadcast is None or reduced is None or reduced.kind.data not in kinds:
        return None
    last = len(shape_of(x)) - 1
    if ints(reduced.dims) != (last,) or ints(broadcast.dims) != tuple(range(last)):
        return None
    return reduced.operands[0], (broadcast, reduced)


def scaling(op: MulOp | DivOp) -> tuple[SSAValue, float | SSAValue] | None:
    """(x, number or 0-d value) of x · number or x / number; None when the other operand is not a single number."""
    sides = ((op.lhs, op.rhs), (op.rhs, op.lhs))
    for x, by in sides:
        if isinstance(op, DivOp) and x is not op.lhs:
            continue
        number = splat(by)
        if isinstance(number, int | float):
            return (x, float(number)) if number else None
        broadcast = defined_by(by, BroadcastInDimOp)
        if broadcast is not None and shape_of(broadcast.operands[0]) == ():
            return x, broadcast.operands[0]
    return None


def _unmasked(op: AddOp | SelectOp, reader: Reader) -> tuple[SSAValue, float] | None:
    """(the scores before masking, the number that hides) of select(mask, x, hidden), or of x + select(mask, 0, hidden)
    where the second term may be broadcast to the scores; None when `reader` does not recognize the mask."""
    if isinstance(op, SelectOp):
        choice = _choice(op)
        return (choice[0], choice[2]) if choice is not None and _read(reader, op.operands[0], choice[1], None) else None
    for x, mask in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        axes = tuple(range(len(shape_of(mask))))
        varying = tuple(None if size == 1 else axis for axis, size in zip(axes, shape_of(mask), strict=True))
        while (moved := through(mask, varying)) is not None:
            mask, varying = moved
        select = defined_by(mask, SelectOp)
        choice = None if select is None else _choice(select)
        if select is None or choice is None or splat(choice[0]) != 0:
            continue
        if _read(reader, select.operands[0], choice[1], varying):
            return x, choice[2]
    return None


def _scores_and_bias(op: AddOp) -> tuple[SSAValue, SSAValue] | None:
    """Return (the scores, the added bias); None unless exactly one side is computed from a product of queries and
    keys."""
    left, right = _has_product(op.lhs), _has_product(op.rhs)
    if left == right or len(shape_of(op.lhs)) > 4:
        return None
    return (op.lhs, op.rhs) if left else (op.rhs, op.lhs)


def _has_product(x: SSAValue) -> bool:
    owner = x.owner
    if isinstance(owner, ConvertOp | ReshapeOp):
        return _has_product(owner.operands[0])
    if isinstance(owner, MulOp | DivOp):
        scaled = scaling(owner)
        return scaled is not None and _has_product(scaled[0])
    if isinstance(owner, AddOp | SelectOp):
        return any(_has_product(side) for side in owner.operands[-2:])
    return isinstance(owner, DotGeneralOp) and scores_of(owner) is not None


def _choice(op: SelectOp) -> tuple[SSAValue, bool, float] | None:
    """(the value where keys are seen, whether the condition is true there, the number that hides other keys)."""
    _, on_true, on_false = op.operands
    for hidden, x, seen in ((on_false, on_true, True), (on_true, on_false, False)):
        number = splat(hidden)
        if isinstance(number, int | float) and number <= HIDING:
            return x, seen, float(number)
    return None


def _read(reader: Reader, mask: SSAValue, seen: bool, axes: tuple[int | None, ...] | None) -> bool:
    shape = shape_of(mask)
    if not shape:
        return False
    if axes is None:
        axes = tuple(None if size == 1 else axis for axis, size in enumerate(shape))
    return reader.add(mask, axes, seen)
