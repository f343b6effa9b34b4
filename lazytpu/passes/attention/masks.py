"""What a mask of attention hides, read from the ops that compute it.

A mask says for query q and key k whether k is seen. Read are conjunctions of

- comparisons of positions, k <= q + offset and k > q + offset - window: iotas, constants and run-time numbers added,
  subtracted and compared, as `tril`, `arange` and the mask functions of transformers write them;
- masks of keys alone, the same for all queries and heads: padding;
- one that cannot be read, such as an argument of the program, alone: the same for all heads, it is kept as it is.

Where anything else is in it, `read` gives None.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from xdsl.ir import SSAValue

from lazytpu.ir.binary import AddOp, AndOp, OrOp, SubOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import IotaOp
from lazytpu.ir.pointwise import CompareOp, ConvertOp
from lazytpu.ir.shape import BroadcastInDimOp, ReshapeOp
from lazytpu.ir.types import dtype_of, ints, is_integer, shape_of
from lazytpu.ir.unary import NotOp
from lazytpu.passes.patterns.rewriting import defined_by, splat

Axes = tuple["int | None", ...]
"Of each dimension of a value, the axis of the scores that it runs along; None for one that is repeated along all."

OPPOSITE = {"LT": "GE", "GE": "LT", "LE": "GT", "GT": "LE"}


@dataclass(frozen=True)
class Position:
    """An integer that is linear in the axes of the scores: Σ slope·index + constant + Σ sign·(0-d run-time value)."""

    slopes: dict[int, int]
    constant: int = 0
    terms: tuple[tuple[SSAValue, int], ...] = ()

    def minus(self, other: Position) -> Position:
        return self.plus(other.negative())

    def negative(self) -> Position:
        slopes = {axis: -slope for axis, slope in self.slopes.items()}
        return Position(slopes, -self.constant, tuple((x, -sign) for x, sign in self.terms))

    def plus(self, other: Position) -> Position:
        slopes = {axis: self.slopes.get(axis, 0) + other.slopes.get(axis, 0) for axis in {*self.slopes, *other.slopes}}
        terms = list(self.terms)
        for x, sign in other.terms:
            if (x, -sign) in terms:
                terms.remove((x, -sign))
            else:
                terms.append((x, sign))
        kept = {axis: slope for axis, slope in slopes.items() if slope}
        return Position(kept, self.constant + other.constant, tuple(sorted(terms, key=lambda term: id(term[0]))))


@dataclass(frozen=True)
class Visible:
    """Key k is seen by query q where k <= q + last and k >= q + first (None: no such bound) and all of `keys` hold:
    i1 values, each with its axes and whether it says which keys are seen (True) or hidden (False)."""

    last: Position | None = None
    first: Position | None = None
    keys: tuple[tuple[SSAValue, Axes, bool], ...] = ()
    stored: tuple[SSAValue, Axes, bool] | None = None
    "A mask of queries and keys that is read from memory; nothing else is said then."


@dataclass
class Reader:
    """Reads masks of scores of a rank, whose last two axes are queries and keys, and the one before them heads."""

    rank: int
    found: Visible = field(default_factory=Visible)

    def add(self, mask: SSAValue, axes: Axes, seen: bool) -> bool:
        """As `read`; but a mask that is the first, and cannot be read, is taken from memory as a whole."""
        before = self.found
        if self.read(mask, axes, seen) and positions(self.found) is not None:
            return True
        self.found = before
        while (moved := through(mask, axes)) is not None:
            mask, axes = moved
        return self._leaf(mask, axes, seen) and self.found.stored is not None

    def read(self, mask: SSAValue, axes: Axes, seen: bool) -> bool:
        """Add to `found` what an i1 value says about the keys that are seen (or, with `seen` False, hidden); False when
        it cannot be said."""
        if self.found.stored is not None:
            return False
        both = defined_by(mask, AndOp) if seen else defined_by(mask, OrOp)
        if both is not None:
            return all(self.read(x, axes, seen) for x in both.operands)
        if (opposite := defined_by(mask, NotOp)) is not None:
            return self.read(opposite.operands[0], axes, not seen)
        if (moved := through(mask, axes)) is not None:
            return self.read(*moved, seen)
        known = splat(mask)
        if known is not None and bool(known) == seen:
            return True
        compared = defined_by(mask, CompareOp)
        if compared is not None and self._compare(compared, axes, seen):
            return True
        return self._leaf(mask, axes, seen)

    def _leaf(self, mask: SSAValue, axes: Axes, seen: bool) -> bool:
        """Take a mask as it is in memory: one of keys alone, or, alone, one of queries and keys."""
        used = [axis for axis in axes if axis is not None]
        batch = (0,) if self.rank in (3, 4) else ()
        if used != sorted(used) or any(axis not in (*batch, self.rank - 2, self.rank - 1) for axis in used):
            return False
        if self.rank - 2 in used:
            alone = self.found == Visible()
            self.found = replace(self.found, stored=(mask, axes, seen))
            return alone
        self.found = replace(self.found, keys=(*self.found.keys, (mask, axes, seen)))
        return True

    def _compare(self, op: CompareOp, axes: Axes, seen: bool) -> bool:
        direction = op.direction.data
        if direction not in OPPOSITE or not is_integer(dtype_of(op.operands[0])):
            return False
        x, y = (position(operand, axes) for operand in op.operands)
        if x is None or y is None:
            return False
        direction = direction if seen else OPPOSITE[direction]
        # As `under <= 0`.
        under = x.minus(y) if direction in ("LT", "LE") else y.minus(x)
        if direction in ("LT", "GT"):
            under = replace(under, constant=under.constant + 1)
        queries, keys = self.rank - 2, self.rank - 1
        if under.slopes == {keys: 1, queries: -1} and self.found.last is None:
            self.found = replace(self.found, last=Position({}, -under.constant, under.negative().terms))
            return True
        if under.slopes == {keys: -1, queries: 1} and self.found.first is None:
            self.found = replace(self.found, first=Position({}, under.constant, under.terms))
            return True
        return not under.slopes and not under.terms and under.constant <= 0


def read(mask: SSAValue, rank: int, seen: bool = True) -> Visible | None:
    """What a mask says that broadcasts to scores of this rank, aligned at the right; None when it cannot be read."""
    shape = shape_of(mask)
    axes = tuple(rank - len(shape) + i if size != 1 else None for i, size in enumerate(shape))
    reader = Reader(rank)
    return reader.found if reader.read(mask, axes, seen) else None


def through(x: SSAValue, axes: Axes) -> tuple[SSAValue, Axes] | None:
    """What a broadcast, or a reshape that only adds or drops dimensions of size 1, was made of, and its axes."""
    if (spread := defined_by(x, BroadcastInDimOp)) is not None:
        source, dims = spread.operands[0], ints(spread.dims)
        shape = shape_of(source)
        return source, tuple(None if size == 1 else axes[dim] for dim, size in zip(dims, shape, strict=True))
    if (reshaped := defined_by(x, ReshapeOp)) is not None:
        source = reshaped.operands[0]
        rest = [axis for axis, size in zip(axes, shape_of(x), strict=True) if size != 1]
        shape = shape_of(source)
        if [size for size in shape if size != 1] == [size for size in shape_of(x) if size != 1]:
            return source, tuple(None if size == 1 else rest.pop(0) for size in shape)
    return None


def position(x: SSAValue, axes: Axes) -> Position | None:
    """An integer value as a position; None when it is not linear."""
    if not is_integer(dtype_of(x)):
        return None
    number = splat(x)
    if isinstance(number, int):
        return Position({}, number)
    if (moved := through(x, axes)) is not None:
        return position(*moved)
    if (converted := defined_by(x, ConvertOp)) is not None and (found := position(converted.operands[0], axes)):
        return found
    if (counted := defined_by(x, IotaOp)) is not None:
        axis = axes[counted.dim.value.data]
        return None if axis is None else Position({axis: 1})
    if isinstance(x.owner, AddOp | SubOp):
        left, right = (position(operand, axes) for operand in x.owner.operands)
        if left is None or right is None:
            return None
        return left.plus(right) if isinstance(x.owner, AddOp) else left.minus(right)
    return Position({}, 0, ((x, 1),)) if shape_of(x) == () else None


def positions(found: Visible) -> tuple[Position, int] | None:
    """(offset, window) of the bounds, as attention ops have them; None when the window is not known."""
    first, last = found.first, found.last
    if first is None:
        return last or Position({}), 0
    if last is None:
        return Position({}, first.constant, first.terms), 1
    span = last.minus(first)
    return None if span.terms or span.constant < 0 else (last, span.constant + 1)


def sees_a_key(found: Visible, queries: int, keys: int) -> bool:
    """Whether each of so many queries is known to see one of so many keys."""
    if found.keys or found.stored is not None or not keys:
        return False
    first, last = found.first or Position({}, -queries), found.last or Position({}, keys)
    return (
        not (first.terms or last.terms) and last.constant >= max(0, first.constant) and first.constant <= keys - queries
    )


def offset_of(b: Builder, found: Position) -> SSAValue | None:
    """The run-time value of a position that does not depend on the axes, as i32; None when it is always 0."""
    if not found.terms and not found.constant:
        return None
    total = b.constant(found.constant, "i32")
    for x, sign in found.terms:
        term = b.convert(x, "i32")
        total = b.add(total, term) if sign > 0 else b.sub(total, term)
    return total


def bias_of(b: Builder, visible: Visible, batch: int, length: int) -> SSAValue | None:
    """What an attention op takes as its bias: the masks of keys as one, [batch, 1, 1, S], or the mask from memory,
    [batch or 1, 1, L, S]; None when there are none."""
    if visible.stored is not None:
        mask, axes, seen = visible.stored
        sizes = [size for axis, size in zip(axes, shape_of(mask), strict=True) if axis is not None]
        mask = mask if seen else b.not_(mask)
        return b.reshape(mask, (sizes[0] if len(sizes) == 3 else 1, 1, *sizes[-2:]))
    total: SSAValue | None = None
    for mask, axes, seen in visible.keys:
        sizes = {axis: size for axis, size in zip(axes, shape_of(mask), strict=True) if axis is not None}
        rows = b.reshape(mask, (sizes.pop(0, 1), 1, 1, next(iter(sizes.values()), 1)))
        rows = b.broadcast_to(rows if seen else b.not_(rows), (batch, 1, 1, length))
        total = rows if total is None else b.and_(total, rows)
    return total


def added_to_scores(b: Builder, x: SSAValue) -> SSAValue:
    """Numbers that are added to scores of their shape, of 3 or 4 axes, without repeating them: of 4 axes."""
    axes: Axes = tuple(range(len(shape_of(x))))
    known: Axes = tuple(None if size == 1 else axis for axis, size in zip(axes, shape_of(x), strict=True))
    rank = len(axes)
    while (moved := through(x, known)) is not None:
        x, known = moved
    sizes = {axis: size for axis, size in zip(known, shape_of(x), strict=True) if axis is not None}
    if list(sizes) != sorted(sizes):
        x = b.transpose(b.reshape(x, [*sizes.values()]), [list(sizes).index(axis) for axis in sorted(sizes)])
    return b.reshape(x, [sizes.get(axis, 1) for axis in _four(rank)])


def _four(rank: int) -> tuple[int, ...]:
    """The axes of scores as batch, heads, queries and keys: -1 for one that is not there."""
    return (0, 1, 2, 3) if rank == 4 else (0, -1, rank - 2, rank - 1) if rank == 3 else (-1, -1, 0, 1)
