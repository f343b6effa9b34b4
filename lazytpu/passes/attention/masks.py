"""Analyzes which keys an attention mask hides, from the ops that compute it.

A mask says for query q and key k whether q sees k. Recognized are conjunctions of

- comparisons of positions, k <= q + offset and k > q + offset - window: iotas, constants and run-time numbers added,
  subtracted and compared, as `tril`, `arange` and the mask functions of transformers write them;
- masks of keys only, the same for all queries and heads: padding.

Where the caller has use for them, also masks of queries only, and one comparison of segments, ids[q] == ids[k], as
packed sequences have it.

A mask that is not recognized, such as an argument of the program, is kept as a stored mask if it stands alone and is
the same for all heads. For anything else `read` returns None.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from xdsl.ir import SSAValue

from lazytpu.ir.attention_work import NO_SEGMENT
from lazytpu.ir.binary import AddOp, AndOp, OrOp, SubOp
from lazytpu.ir.builder import Builder
from lazytpu.ir.constants import IotaOp
from lazytpu.ir.pointwise import CompareOp, ConvertOp
from lazytpu.ir.shape import BroadcastInDimOp, ReshapeOp
from lazytpu.ir.types import bitwidth, dtype_of, ints, is_integer, shape_of
from lazytpu.ir.unary import NotOp
from lazytpu.passes.patterns.rewriting import defined_by, splat

Axes = tuple["int | None", ...]
"For each dimension of a value, the axis of the scores that it runs along; None for a dimension of size 1."
Leaf = tuple[SSAValue, Axes]

OPPOSITE = {"LT": "GE", "GE": "LT", "LE": "GT", "GT": "LE"}


@dataclass(frozen=True)
class Position:
    """An integer that is linear in the indices of a score: Σ slope·index + constant + Σ sign·(0-d run-time value)."""

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
        nonzero = {axis: slope for axis, slope in slopes.items() if slope}
        return Position(nonzero, self.constant + other.constant, tuple(sorted(terms, key=lambda term: id(term[0]))))


@dataclass(frozen=True)
class Visible:
    """Query q sees key k where k <= q + last and k >= q + first (None: no such bound) and all of `keys` hold: i1
    values, each with its axes and whether it marks the keys that are seen (True) or hidden (False)."""

    last: Position | None = None
    first: Position | None = None
    keys: tuple[tuple[SSAValue, Axes, bool], ...] = ()
    stored: tuple[SSAValue, Axes, bool] | None = None
    "A mask of queries and keys that is read from memory; then there are no bounds and no `keys`."
    queries: tuple[tuple[SSAValue, Axes, bool], ...] = ()
    "As `keys`, for masks of queries only."
    segments: tuple[Leaf, Leaf] | None = None
    "Integers of queries and of keys, which must be equal."


@dataclass
class Reader:
    """Reads masks of scores of a given rank, whose last axes are heads, queries and keys. With `packed` it recognizes
    masks of queries and comparisons of segments, too."""

    rank: int
    packed: bool = False
    visible: Visible = field(default_factory=Visible)

    def add(self, mask: SSAValue, axes: Axes, seen: bool) -> bool:
        """As `read`, but a mask that is not recognized becomes the stored mask if it is the first one."""
        before = self.visible
        if self.read(mask, axes, seen) and positions(self.visible) is not None:
            return True
        self.visible = before
        while (moved := through(mask, axes)) is not None:
            mask, axes = moved
        return self._leaf(mask, axes, seen) and self.visible.stored is not None

    def read(self, mask: SSAValue, axes: Axes, seen: bool) -> bool:
        """Add the condition of an i1 value on the keys that are seen (or hidden, with `seen` False) to `visible`.
        Return False when the value is not recognized."""
        if self.visible.stored is not None and not self.packed:
            return False
        operands_op = defined_by(mask, AndOp) if seen else defined_by(mask, OrOp)
        if operands_op is not None:
            return all(self.read(x, axes, seen) for x in operands_op.operands)
        if (opposite := defined_by(mask, NotOp)) is not None:
            return self.read(opposite.operands[0], axes, not seen)
        if (moved := through(mask, axes)) is not None:
            return self.read(*moved, seen)
        number = splat(mask)
        if number is not None and bool(number) == seen:
            return True
        compared = defined_by(mask, CompareOp)
        if compared is not None and (self._compare(compared, axes, seen) or self._segments(compared, axes, seen)):
            return True
        return self._leaf(mask, axes, seen)

    def _leaf(self, mask: SSAValue, axes: Axes, seen: bool) -> bool:
        """Use a mask as it is stored: a mask of keys, or, if nothing else is set, one mask of queries and keys."""
        varying = [axis for axis in axes if axis is not None]
        batch = (0,) if self.rank in (3, 4) else ()
        if varying != sorted(varying) or any(axis not in (*batch, self.rank - 2, self.rank - 1) for axis in varying):
            return False
        if self.packed and self.rank - 2 in varying and self.rank - 1 not in varying:
            self.visible = replace(self.visible, queries=(*self.visible.queries, (mask, axes, seen)))
            return True
        if self.rank - 2 in varying:
            alone = self.visible == Visible() or (self.packed and self.visible.stored is None)
            self.visible = replace(self.visible, stored=(mask, axes, seen))
            return alone
        self.visible = replace(self.visible, keys=(*self.visible.keys, (mask, axes, seen)))
        return True

    def _segments(self, op: CompareOp, axes: Axes, seen: bool) -> bool:
        dtype = dtype_of(op.operands[0])
        if not self.packed or self.visible.segments or not (is_integer(dtype) or dtype == "i1"):
            return False
        if op.direction.data != ("EQ" if seen else "NE"):
            return False
        sides = [_source(x, axes) for x in op.operands]
        batch, queries, keys = {0} if self.rank > 2 else set[int](), self.rank - 2, self.rank - 1
        for of_query, of_key in (sides, sides[::-1]):
            varying = [{axis for axis in leaf[1] if axis is not None} for leaf in (of_query, of_key)]
            if queries in varying[0] <= batch | {queries} and keys in varying[1] <= batch | {keys}:
                self.visible = replace(self.visible, segments=(of_query, of_key))
                return True
        return False

    def _compare(self, op: CompareOp, axes: Axes, seen: bool) -> bool:
        direction = op.direction.data
        if direction not in OPPOSITE or not is_integer(dtype_of(op.operands[0])):
            return False
        x, y = (position(operand, axes) for operand in op.operands)
        if x is None or y is None:
            return False
        direction = direction if seen else OPPOSITE[direction]
        # Normalized to `under <= 0`.
        under = x.minus(y) if direction in ("LT", "LE") else y.minus(x)
        if direction in ("LT", "GT"):
            under = replace(under, constant=under.constant + 1)
        queries, keys = self.rank - 2, self.rank - 1
        if under.slopes == {keys: 1, queries: -1} and self.visible.last is None:
            self.visible = replace(self.visible, last=Position({}, -under.constant, under.negative().terms))
            return True
        if under.slopes == {keys: -1, queries: 1} and self.visible.first is None:
            self.visible = replace(self.visible, first=Position({}, under.constant, under.terms))
            return True
        return not under.slopes and not under.terms and under.constant <= 0


def read(mask: SSAValue, rank: int, seen: bool = True, packed: bool = False) -> Visible | None:
    """The keys that a mask lets queries see; None when it is not recognized. The mask broadcasts to scores of rank
    `rank`, aligned at the right. `packed` as in `Reader`."""
    shape = shape_of(mask)
    axes = tuple(rank - len(shape) + i if size != 1 else None for i, size in enumerate(shape))
    reader = Reader(rank, packed)
    visible = reader.visible if reader.read(mask, axes, seen) else None
    if visible is None or visible.stored is None:
        return visible
    return None if visible.last or visible.first or visible.keys else visible


def _source(x: SSAValue, axes: Axes) -> Leaf:
    """Return a value without the broadcasts and conversions to wider integers around it."""
    while True:
        if (moved := through(x, axes)) is not None:
            x, axes = moved
        elif (converted := defined_by(x, ConvertOp)) is not None and _is_wider(converted):
            x = converted.operands[0]
        else:
            return x, axes


def _is_wider(op: ConvertOp) -> bool:
    """Whether a conversion keeps integers apart that differ."""
    narrow, wide = (dtype_of(x) for x in (op.operands[0], op.results[0]))
    if not is_integer(narrow):
        return narrow == "i1" and is_integer(wide)
    return is_integer(wide) and narrow.startswith("ui") == wide.startswith("ui") and bitwidth(narrow) <= bitwidth(wide)


def through(x: SSAValue, axes: Axes) -> tuple[SSAValue, Axes] | None:
    """The operand, and its axes, of a broadcast or of a reshape that only adds or drops dimensions of size 1."""
    if (broadcast := defined_by(x, BroadcastInDimOp)) is not None:
        source, dims = broadcast.operands[0], ints(broadcast.dims)
        shape = shape_of(source)
        return source, tuple(None if size == 1 else axes[dim] for dim, size in zip(dims, shape, strict=True))
    if (reshaped := defined_by(x, ReshapeOp)) is not None:
        source = reshaped.operands[0]
        kept_axes = [axis for axis, size in zip(axes, shape_of(x), strict=True) if size != 1]
        shape = shape_of(source)
        if [size for size in shape if size != 1] == [size for size in shape_of(x) if size != 1]:
            return source, tuple(None if size == 1 else kept_axes.pop(0) for size in shape)
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
    if (converted := defined_by(x, ConvertOp)) is not None and (inner := position(converted.operands[0], axes)):
        return inner
    if (counted := defined_by(x, IotaOp)) is not None:
        axis = axes[counted.dim.value.data]
        return None if axis is None else Position({axis: 1})
    if isinstance(x.owner, AddOp | SubOp):
        left, right = (position(operand, axes) for operand in x.owner.operands)
        if left is None or right is None:
            return None
        return left.plus(right) if isinstance(x.owner, AddOp) else left.minus(right)
    return Position({}, 0, ((x, 1),)) if shape_of(x) == () else None


def positions(visible: Visible) -> tuple[Position, int] | None:
    """The bounds as (offset, window) of an attention op; None when the window is not a constant."""
    first, last = visible.first, visible.last
    if first is None:
        return last or Position({}), 0
    if last is None:
        return Position({}, first.constant, first.terms), 1
    span = last.minus(first)
    return None if span.terms or span.constant < 0 else (last, span.constant + 1)


def sees_a_key(visible: Visible, queries: int, keys: int) -> bool:
    """Whether every query certainly sees at least one key, given the numbers of both."""
    if visible.keys or visible.stored is not None or not keys:
        return False
    first, last = visible.first or Position({}, -queries), visible.last or Position({}, keys)
    return (
        not (first.terms or last.terms) and last.constant >= max(0, first.constant) and first.constant <= keys - queries
    )


def offset_of(b: Builder, offset: Position) -> SSAValue | None:
    """The value, 0-d i32, of a position that does not depend on the axes; None when it is always 0."""
    if not offset.terms and not offset.constant:
        return None
    total = b.constant(offset.constant, "i32")
    for x, sign in offset.terms:
        term = b.convert(x, "i32")
        total = b.add(total, term) if sign > 0 else b.sub(total, term)
    return total


def bias_of(b: Builder, visible: Visible, batch: int, length: int) -> SSAValue | None:
    """The bias of an attention op: the conjunction of the masks of keys, [batch, 1, 1, S], or the stored mask,
    [batch or 1, 1, L, S]; None when there is neither."""
    if visible.stored is not None:
        mask, axes, seen = visible.stored
        sizes = [size for axis, size in zip(axes, shape_of(mask), strict=True) if axis is not None]
        mask = mask if seen else b.not_(mask)
        return b.reshape(mask, (sizes[0] if len(sizes) == 3 else 1, 1, *sizes[-2:]))
    rows = _conjunction(b, visible.keys, batch, length)
    return None if rows is None else b.reshape(rows, (batch, 1, 1, length))


def _conjunction(
    b: Builder, masks: tuple[tuple[SSAValue, Axes, bool], ...], batch: int, length: int
) -> SSAValue | None:
    """The conjunction, [batch, length], of masks of keys or of masks of queries; None of none."""
    total: SSAValue | None = None
    for mask, axes, seen in masks:
        rows = _rows(b, (mask, axes))
        rows = b.broadcast_to(rows if seen else b.not_(rows), (batch, length))
        total = rows if total is None else b.and_(total, rows)
    return total


def _rows(b: Builder, leaf: Leaf) -> SSAValue:
    """A value that varies along the batch and one more axis: [batch or 1, length or 1]."""
    x, axes = leaf
    sizes = {axis: size for axis, size in zip(axes, shape_of(x), strict=True) if axis is not None}
    if list(sizes) != sorted(sizes):
        x = b.transpose(b.reshape(x, [*sizes.values()]), [1, 0])
    return b.reshape(x, (sizes.pop(0, 1), next(iter(sizes.values()), 1)))


def segments_of(b: Builder, visible: Visible, batch: int, queries: int) -> tuple[SSAValue, SSAValue] | None:
    """The ids, i32 [batch or 1, L] and [batch or 1, S], of the segments of queries and keys: a query sees the keys with
    its id, and none if its id is `NO_SEGMENT`, which no key has. None when there are neither segments nor masks of
    queries."""
    seen = _conjunction(b, visible.queries, batch, queries)
    if visible.segments is None:
        if seen is None:
            return None
        rows, columns = b.constant(0, "i32", (batch, queries)), b.constant(0, "i32", (1, 1))
    else:
        of_query, of_key = (_rows(b, leaf) for leaf in visible.segments)
        if dtype_of(of_query) != dtype_of(of_key):
            of_query, of_key = (b.convert(x, "i64") for x in (of_query, of_key))
        most = max(shape_of(of_query)[0], shape_of(of_key)[0])
        operands = [b.broadcast_to(x, (most, shape_of(x)[1])) for x in (of_query, of_key)]
        rows, columns = b.template("segment_ids", operands, [("i32", shape_of(x)) for x in operands])
    if seen is not None:
        rows = b.broadcast_to(rows, (batch, queries))
        rows = b.select(seen, rows, b.constant(NO_SEGMENT, "i32", (batch, queries)))
    return rows, columns


def added_to_scores(b: Builder, x: SSAValue) -> SSAValue:
    """Numbers that are added to the scores, of the same shape with 2 to 4 axes, before any broadcast: with 4 axes."""
    axes: Axes = tuple(range(len(shape_of(x))))
    varying: Axes = tuple(None if size == 1 else axis for axis, size in zip(axes, shape_of(x), strict=True))
    rank = len(axes)
    while (moved := through(x, varying)) is not None:
        x, varying = moved
    sizes = {axis: size for axis, size in zip(varying, shape_of(x), strict=True) if axis is not None}
    if list(sizes) != sorted(sizes):
        x = b.transpose(b.reshape(x, [*sizes.values()]), [list(sizes).index(axis) for axis in sorted(sizes)])
    return b.reshape(x, [sizes.get(axis, 1) for axis in _four(rank)])


def _four(rank: int) -> tuple[int, ...]:
    """The axes of batch, heads, queries and keys in scores of this rank; -1 for a missing one."""
    return (0, 1, 2, 3) if rank == 4 else (0, -1, rank - 2, rank - 1) if rank == 3 else (-1, -1, 0, 1)
