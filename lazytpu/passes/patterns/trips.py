"""Trip counts of loops whose counter runs from a constant to a constant."""

from __future__ import annotations

import operator
from collections.abc import Callable

from xdsl.ir import BlockArgument, SSAValue

from lazytpu.ir.binary import AddOp, SubOp
from lazytpu.ir.control import WhileOp
from lazytpu.ir.pointwise import CompareOp
from lazytpu.ir.types import bitwidth, dtype_of, is_integer, is_unsigned
from lazytpu.passes.patterns.rewriting import splat

FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}
HOLDS: dict[str, Callable[[int, int], bool]] = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}


def trips(op: WhileOp) -> int | None:
    """The number of iterations of a loop; None when it depends on more than a counter, or does not end."""
    (condition,) = op.yielded(0)
    if splat(condition) is not None:
        return None if splat(condition) else 0
    compare = condition.owner
    if not isinstance(compare, CompareOp):
        return None
    x, y = compare.operands
    direction = compare.direction.data
    limit = _number(op, y)
    if limit is None:
        x, direction, limit = y, FLIPPED[direction], _number(op, x)
    counter = _carried(op, x)
    if counter is None or limit is None or not is_integer(dtype_of(x)):
        return None
    start, step = _integer(splat(op.operands[counter])), _step(op, counter)
    if start is None:
        return None
    if not HOLDS[direction](start, limit):
        return 0
    return None if step is None else _count(dtype_of(x), direction, start, limit, step)


def _count(dtype: str, direction: str, start: int, limit: int, step: int) -> int | None:
    """Return the iterations of a loop that runs at least once; None when the counter would wrap around before the
    end."""
    if direction == "EQ":
        return 1 if step else None
    if direction == "NE":
        count, remainder = divmod(limit - start, step) if step else (0, 1)
        return count if not remainder and count > 0 else None
    if (step <= 0) if direction in ("LT", "LE") else (step >= 0):
        return None
    beyond = limit + (1 if direction == "LE" else -1 if direction == "GE" else 0)
    count = -((start - beyond) // step)
    bits = bitwidth(dtype)
    low, high = (0, (1 << bits) - 1) if is_unsigned(dtype) else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return count if low <= start + count * step <= high else None


def _step(op: WhileOp, counter: int) -> int | None:
    """Return the constant that each iteration adds to a carried value; None if there is none."""
    after = op.yielded(1)[counter].owner
    if not isinstance(after, AddOp | SubOp):
        return None
    x, y = after.operands
    if _region_argument(op, 1, x) != counter and isinstance(after, AddOp):
        x, y = y, x
    step = _integer(splat(y))
    if _region_argument(op, 1, x) != counter or step is None:
        return None
    return step if isinstance(after, AddOp) else -step


def _carried(op: WhileOp, value: SSAValue) -> int | None:
    """Return the number of the carried value that a value of the condition is, or None."""
    number = _region_argument(op, 0, value)
    return number if number is not None and number < op.count else None


def _region_argument(op: WhileOp, region: int, value: SSAValue) -> int | None:
    block = op.regions[region].block
    return value.index if isinstance(value, BlockArgument) and value.block is block else None


def _number(op: WhileOp, value: SSAValue) -> int | None:
    """Return the integer that a value of the condition equals in every iteration: a constant of the region, or from
    outside."""
    number = _region_argument(op, 0, value)
    if number is not None:
        return _integer(splat(op.operands[number])) if number >= op.count else None
    return _integer(splat(value))


def _integer(number: object) -> int | None:
    return number if isinstance(number, int) and not isinstance(number, bool) else None
