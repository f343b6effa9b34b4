"""Compares repeated stretches, op by op: the inputs of one iteration of the loop, their sources, and the used results.

The operands of k ops that become one op are k values, one for each iteration. They are one of

- `Same`: one value from outside, in all iterations;
- `Local`: the result of an earlier op of the same iteration;
- `Carried`: a result from one or more iterations ago, and in the first iterations a value from outside;
- `Rebuilt`: results of equal views, constants, run-time numbers or scalars. They are computed in the loop, from
  operands that are again one of these. Their differences, the start of a slice or a number, become a function of the
  index;
- `Rows`: different values from outside, which are stacked before the loop.

If the first or last iterations differ from the others, `Misaligned` gives the range of the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.ir import Attribute, Operation, SSAValue

from lazytpu.ir.constants import ConstantOp, DenseConstantOp, IotaOp, NumberOp
from lazytpu.ir.shape import PadOp, SliceOp, TransposeOp
from lazytpu.ir.types import ints
from lazytpu.passes.clusters.sorter import RECOMPUTE, VIEWS

Values: TypeAlias = tuple[SSAValue, ...]

TABLES = (ConstantOp, DenseConstantOp, NumberOp)
"Ops that may hold different numbers in each iteration."
AT_INDEX = (*TABLES, SliceOp, PadOp)
"""Ops that may differ between iterations in other properties than their operands."""
LAG = 4
"""The most iterations between a result and its use as an operand of a later one."""
EDGE = 3
"""The most iterations at an end that are dropped because they differ from the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    """A value from outside that all iterations read."""

    value: SSAValue


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """Result number `result` of the op at `position` in the same iteration."""

    position: int
    result: int


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """The carried value with this number."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """The result of these ops, one for each iteration, computed in the loop."""

    ops: tuple[Operation, ...]
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One of several values from outside in each iteration."""

    values: Values


Operand: TypeAlias = Same | Local | Carried | Rebuilt | Rows


@dataclass(frozen=True, slots=True, eq=False)
class Carry:
    """A carried value: its value in the first iteration, and after an iteration."""

    start: SSAValue
    after: Local | Carried


class Misaligned(Exception):
    """The iterations differ. If `fitting` is not None, the iterations from its first to its last (excluded) may be
    equal."""

    def __init__(self, why: str, fitting: tuple[int, int] | None = None):
        super().__init__(why)
        self.fitting = fitting


@dataclass(slots=True)
class Alignment:
    """The iterations of a loop, compared.

    `iterations` are their ops. `free` are the ops of the block that belong to no iteration, and `dependent` the free
    ops that depend on an iteration. Raises Misaligned.
    """

    iterations: Sequence[Sequence[Operation]]
    free: Collection[Operation]
    dependent: Collection[Operation]
    operands: list[tuple[Operand, ...]] = field(default_factory=list[tuple["Operand", ...]])
    """One operand list for each op of an iteration."""
    carries: list[Carry] = field(default_factory=list[Carry])
    used: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])
    """(position, result) -> the iterations whose result has uses outside of the loop, in ascending order."""
    _place: dict[SSAValue, tuple[int, int, int]] = field(default_factory=dict[SSAValue, tuple[int, int, int]])
    _known: dict[Values, Operand] = field(default_factory=dict[Values, "Operand"])

    def __post_init__(self) -> None:
        for iteration, ops in enumerate(self.iterations):
            for position, op in enumerate(ops):
                for number, result in enumerate(op.results):
                    self._place[result] = (iteration, position, number)
        for ops in zip(*self.iterations, strict=True):
            check_alike(ops)
            self.operands.append(tuple(map(self.operand, zip(*(op.operands for op in ops), strict=True))))
        self._find_used()

    @property
    def trips(self) -> int:
        """The number of iterations."""
        return len(self.iterations)

    def rows(self) -> list[Values]:
        """The values that are stacked before the loop."""
        return [operand.values for operand in self._known.values() if isinstance(operand, Rows)]

    def operand(self, values: Values) -> Operand:
        """Classify k values, one for each iteration."""
        classified = self._known.get(values)
        if classified is None:
            classified = self._known[values] = self._operand(values)
        return classified

    def _operand(self, values: Values) -> Operand:
        first = values[0]
        if all(value is first for value in values) and self._outside(first):
            return Same(first)
        if any(value.type is not first.type and value.type != first.type for value in values):
            raise Misaligned("values of different types take the same place")
        if any(value in self._place for value in values):
            return self._recurrence(values)
        if (ops := _transparent(values, self.free)) is not None:
            operands = tuple(map(self.operand, zip(*(op.operands for op in ops), strict=True)))
            # A slice of a stack would make the stack longer than a stack of slices.
            if not (isinstance(ops[0], SliceOp) and isinstance(operands[0], Rows)):
                return Rebuilt(ops, operands)
        if not all(map(self._outside, values)):
            raise Misaligned("values from outside depend on an iteration", (1, self.trips))
        if (fitting := _of_one_root(values)) is not None:
            raise Misaligned("the values at an end come from elsewhere", fitting)
        return Rows(values)

    def _outside(self, value: SSAValue) -> bool:
        """Whether a value is available before the loop."""
        return value not in self._place and value.owner not in self.dependent

    def _recurrence(self, values: Values) -> Operand:
        """Classify values of which some are computed in the loop: they must be the same result of the same or an
        earlier iteration."""
        places = [self._place.get(value) for value in values]
        last = places[-1]
        if last is None:
            raise Misaligned("the last iterations read values that others do not", (0, self.trips - 1))
        lag, position, result = self.trips - 1 - last[0], last[1], last[2]
        odd = [i for i in range(lag, self.trips) if places[i] != (i - lag, position, result)]
        odd += [i for i in range(min(lag, self.trips)) if not self._outside(values[i])]
        if odd or lag > LAG:
            raise Misaligned("an iteration reads values that others do not", _around(odd, self.trips))
        after: Local | Carried = Local(position, result)
        for i in range(lag - 1, -1, -1):
            self.carries.append(Carry(values[i], after))
            after = Carried(len(self.carries) - 1)
        return after

    def _find_used(self) -> None:
        loop_ops = {op for ops in self.iterations for op in ops}
        needed: dict[Operation, bool] = {}

        def is_needed(op: Operation) -> bool:
            """Whether a user is outside of the loop, and is not repeated in it."""
            if op in loop_ops:
                return False
            if op not in self.free or op.next_op is None:
                return True
            if op not in needed:
                needed[op] = any(is_needed(use.operation) for result in op.results for use in result.uses)
            return needed[op]

        for value, (iteration, position, result) in self._place.items():
            if any(is_needed(use.operation) for use in value.uses):
                self.used.setdefault((position, result), []).append(iteration)


def check_alike(ops: Sequence[Operation]) -> None:
    """Raise Misaligned unless ops that are equal up to their operands differ only in properties that can be a function
    of the index."""
    first = ops[0]
    if not isinstance(first, AT_INDEX) or all(op.properties == first.properties for op in ops):
        return
    if isinstance(first, SliceOp) and any(op.strides != first.strides for op in ops if isinstance(op, SliceOp)):
        raise Misaligned("slices of different strides take the same place")
    if isinstance(first, PadOp):
        pads = [op for op in ops if isinstance(op, PadOp)]
        if any(any(ints(op.interior)) or min(*ints(op.low), *ints(op.high)) < 0 for op in pads):
            raise Misaligned("paddings between elements or of less than 0 differ")


def _transparent(values: Values, free: Collection[Operation]) -> tuple[Operation, ...] | None:
    """Return the ops that define values, if they are equal and cheap enough to compute in the loop."""
    ops: list[Operation] = []
    for value in values:
        op = value.owner
        if not isinstance(op, Operation) or not (op in free or isinstance(op, (*VIEWS, TransposeOp, *TABLES, IotaOp))):
            return None
        ops.append(op)
    first = ops[0]
    if len(first.results) != 1 or any(type(op) is not type(first) for op in ops):
        return None
    compared = _compared(first)
    if any(_compared(op) != compared or len(op.operands) != len(first.operands) for op in ops):
        return None
    operand_types = [operand.type for operand in first.operands]
    if any([operand.type for operand in op.operands] != operand_types for op in ops):
        return None
    return tuple(ops)


def _compared(op: Operation) -> dict[str, Attribute]:
    properties = dict(op.properties)
    if isinstance(op, SliceOp):
        properties = {"strides": op.strides}
    elif isinstance(op, TABLES):
        properties = {}
    return {**properties, **{name: value for name, value in op.attributes.items() if name != RECOMPUTE}}


def _around(odd: Sequence[int], trips: int) -> tuple[int, int] | None:
    """Return the range of iterations without the odd ones, if these are few, less than half, and at the ends."""
    first = max((i + 1 for i in odd if i < EDGE), default=0)
    last = min((i for i in odd if i >= trips - EDGE), default=trips)
    most = 2 * (last - first) > trips
    return (first, last) if most and all(i < first or i >= last for i in odd) else None


def _of_one_root(values: Values) -> tuple[int, int] | None:
    """Return the range of iterations in the middle, if their values are slices of one array and the values of the first
    or last iterations are not. Otherwise these would force the stack of an earlier loop apart."""
    roots = [root(value) for value in values]
    middle = roots[len(roots) // 2]
    odd = [i for i, candidate in enumerate(roots) if candidate is not middle]
    return _around(odd, len(values)) if odd else None


def root(value: SSAValue) -> SSAValue:
    """Return the array that a value is a view of."""
    while isinstance(value.owner, (*VIEWS, TransposeOp)):
        value = value.owner.operands[0]
    return value
