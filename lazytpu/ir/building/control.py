"""Branches and loops, built from functions that fill their regions.

A function receives the builder of its region and the region's values, and returns the values that the region yields,
one or several. It may use any value from outside, which is captured, and it may itself build branches and loops.

A value check in a region concerns the iterations and branches that run. Its result leaves the region as an additional
value: true if the branch is not taken, and in a loop the conjunction over all iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from xdsl.ir import Region, SSAValue

from lazytpu.ir import control
from lazytpu.ir.building.core import integer_prop
from lazytpu.ir.building.regions import RegionMethods
from lazytpu.ir.types import dtype_of, shape_of, tensor_type

Values: TypeAlias = "SSAValue | Sequence[SSAValue]"
Filling: TypeAlias = "Callable[..., Values]"
"""filling(b, *values) -> the values that the region yields; `b` is the builder of the region."""

COUNTER = "i32"
"Dtype of the counters of loops: a TPU has no registers for i64."


def build_if(
    b: RegionMethods, condition: SSAValue, then: Filling, orelse: Filling, operands: Sequence[SSAValue]
) -> list[SSAValue]:
    control.check_condition(condition)
    regions = [b.nested([v.type for v in operands]) for _ in range(2)]
    yields = [_fill(inner, filling, inner.block.args) for inner, filling in zip(regions, (then, orelse), strict=True)]
    count = len(control.if_types(*yields))
    checks = [check for inner in regions for check in inner.checks]
    for inner, values in zip(regions, yields, strict=True):
        passed = {id(check): inner.local(check[0]) for check in inner.checks}
        values += [passed.get(id(check)) or inner.constant(True, "i1") for check in checks]
    types, bodies = control.if_types(*yields), _close(regions, yields)
    op = b.op(control.IfOp, [condition, *operands, *_share_captures(regions)], types, {}, bodies)
    _pass_on(b, checks, op.results[count:])
    return list(op.results[:count])


@dataclass
class _Accumulated:
    """An additional value that a loop carries besides the results of its body: its initial value, and its value after
    an iteration."""

    start: Callable[[RegionMethods], SSAValue]
    after: Callable[[RegionMethods, SSAValue], SSAValue]


def build_while(
    b: RegionMethods, carried: Sequence[SSAValue], cond: Filling, body: Filling, invariants: Sequence[SSAValue]
) -> list[SSAValue]:
    return _loop(b, carried, cond, body, invariants, [])[: len(carried)]


def _loop(
    b: RegionMethods,
    carried: Sequence[SSAValue],
    cond: Filling,
    body: Filling,
    invariants: Sequence[SSAValue],
    accumulated: list[_Accumulated],
) -> list[SSAValue]:
    """Return the last carried values, followed by the accumulated ones. The body may add to `accumulated` while it
    fills its region."""
    count, types = len(carried), [v.type for v in (*carried, *invariants)]
    conditions = b.nested(types)
    condition = _fill(conditions, cond, conditions.block.args)
    if conditions.checks:
        return _rotated(b, carried, cond, body, invariants, accumulated)
    bodies = b.nested(types)
    values = _fill(bodies, body, bodies.block.args)
    control.while_types(carried, condition, values)
    checks = bodies.checks
    accumulated += [_passed(ok) for ok, _, _ in checks]
    start = [*carried, *(extra.start(b) for extra in accumulated)]
    for at, extra in enumerate(accumulated, count):
        conditions.block.insert_arg(start[at].type, at)
        values.append(bodies.local(extra.after(bodies, bodies.block.insert_arg(start[at].type, at))))
    result_types, closed = (
        control.while_types(start, condition, values),
        _close([conditions, bodies], [condition, values]),
    )
    entering = [*start, *invariants, *_share_captures([conditions, bodies])]
    op = b.op(control.WhileOp, entering, result_types, {"carried": integer_prop(len(start))}, closed)
    results: list[SSAValue] = list(op.results)
    _pass_on(b, checks, results[len(results) - len(checks) :])
    return results[: len(results) - len(checks)]


def _passed(ok: SSAValue) -> _Accumulated:
    """Accumulate whether a check passed in every iteration."""
    return _Accumulated(lambda b: b.constant(True, "i1"), lambda inner, before: inner.binary("and", before, ok))


def _rotated(
    b: RegionMethods,
    carried: Sequence[SSAValue],
    cond: Filling,
    body: Filling,
    invariants: Sequence[SSAValue],
    accumulated: list[_Accumulated],
) -> list[SSAValue]:
    """Build the loop with its condition computed before it and again at the end of the body: a region that yields a
    condition cannot also yield the results of value checks."""
    count = len(carried)

    def step(inner: RegionMethods, going: SSAValue, *values: SSAValue) -> list[SSAValue]:
        after = _listed(body(inner, *values))
        return [*_listed(cond(inner, *after, *values[count:])), *after]

    def goes(inner: RegionMethods, going: SSAValue, *_: SSAValue) -> SSAValue:
        return going

    first = _listed(cond(b, *carried, *invariants))
    return _loop(b, [*first, *carried], goes, step, invariants, accumulated)[1:]


def build_repeat(
    b: RegionMethods, times: int | SSAValue, carried: Sequence[SSAValue], body: Filling, invariants: Sequence[SSAValue]
) -> list[SSAValue]:
    return _repeat(b, times, carried, body, invariants, [])


def _repeat(
    b: RegionMethods,
    times: int | SSAValue,
    carried: Sequence[SSAValue],
    body: Filling,
    invariants: Sequence[SSAValue],
    accumulated: list[_Accumulated],
) -> list[SSAValue]:
    limit = b.convert(times, COUNTER) if isinstance(times, SSAValue) else b.constant(times, COUNTER)

    def cond(inner: RegionMethods, i: SSAValue, *_: SSAValue) -> SSAValue:
        return inner.compare("LT", i, limit)

    def step(inner: RegionMethods, i: SSAValue, *values: SSAValue) -> list[SSAValue]:
        after = _listed(body(inner, i, *values))
        return [inner.binary("add", i, inner.constant(1, COUNTER)), *after]

    return _loop(b, [b.constant(0, COUNTER), *carried], cond, step, invariants, accumulated)[1:]


def build_scan(
    b: RegionMethods,
    carried: Sequence[SSAValue],
    xs: Sequence[SSAValue],
    body: Filling,
    length: int,
    reverse: bool,
    invariants: Sequence[SSAValue],
) -> tuple[list[SSAValue], list[SSAValue]]:
    lengths = [shape_of(x)[0] if shape_of(x) else -1 for x in xs]
    if any(size != length for size in lengths):
        raise ValueError(f"the values scanned over have lengths {lengths}; expected a first dimension of {length!r}")
    if length == 0:
        return list(carried), _nothing(b, carried, xs, body, invariants)
    count = len(carried)
    stacked: list[_Accumulated] = []

    def step(inner: RegionMethods, i: SSAValue, *values: SSAValue) -> list[SSAValue]:
        at = inner.binary("sub", inner.constant(length - 1, COUNTER), i) if reverse else i
        rows = [row_at(inner, x, at) for x in values[count : count + len(xs)]]
        results = _listed(body(inner, *values[:count], *rows, *values[count + len(xs) :]))
        stacked.extend(_stacked(y, at, length) for y in results[count:])
        return results[:count]

    final = _repeat(b, length, carried, step, [*xs, *invariants], stacked)
    return final[:count], final[count:]


def _stacked(row: SSAValue, at: SSAValue, length: int) -> _Accumulated:
    """Accumulate the rows of all iterations, each at its index."""
    shape = (length, *shape_of(row))
    return _Accumulated(lambda b: b.constant(0, dtype_of(row), shape), lambda inner, x: put_row(inner, x, row, at))


def _nothing(
    b: RegionMethods, carried: Sequence[SSAValue], xs: Sequence[SSAValue], body: Filling, invariants: Sequence[SSAValue]
) -> list[SSAValue]:
    """Return the outputs of a scan over zero rows: the body is built only to infer their types."""
    rows = [tensor_type(dtype_of(x), shape_of(x)[1:]) for x in xs]
    types = [v.type for v in carried], rows, [v.type for v in invariants]
    inner = b.nested([kind for group in types for kind in group])
    outputs = _fill(inner, body, inner.block.args)[len(carried) :]
    return [b.constant(0, dtype_of(y), (0, *shape_of(y))) for y in outputs]


def row_at(b: RegionMethods, x: SSAValue, at: SSAValue) -> SSAValue:
    """x[at], for a run-time index."""
    shape = shape_of(x)
    zero = b.constant(0, COUNTER)
    row = b.dynamic_slice(x, [at, *(zero for _ in shape[1:])], (1, *shape[1:]))
    return b.reshape(row, shape[1:])


def put_row(b: RegionMethods, x: SSAValue, row: SSAValue, at: SSAValue) -> SSAValue:
    """x with x[at] replaced."""
    zero = b.constant(0, COUNTER)
    starts = [at, *(zero for _ in shape_of(row))]
    return b.dynamic_update_slice(x, b.reshape(row, (1, *shape_of(row))), starts)


def _listed(values: Values) -> list[SSAValue]:
    return [values] if isinstance(values, SSAValue) else list(values)


def _fill(inner: RegionMethods, filling: Filling, arguments: Sequence[SSAValue]) -> list[SSAValue]:
    return [inner.local(value) for value in _listed(filling(inner, *arguments))]


def _share_captures(regions: Sequence[RegionMethods]) -> list[SSAValue]:
    """Return the values that any region captured. They become the last arguments of all regions, in this order."""
    captures = list(dict.fromkeys(value for inner in regions for value in inner.captured))
    for inner in regions:
        for value in captures:
            argument = inner.block.insert_arg(value.type, len(inner.block.args))
            if (old := inner.captured.get(value)) is not None:
                old.replace_all_uses_with(argument)
                inner.block.erase_arg(old)
    return captures


def _close(regions: Sequence[RegionMethods], yields: Sequence[Sequence[SSAValue]]) -> list[Region]:
    for inner, values in zip(regions, yields, strict=True):
        inner.block.add_op(control.YieldOp.create(operands=list(values), location=inner.location))
    return [Region(inner.block) for inner in regions]


def _pass_on(b: RegionMethods, checks: Sequence[tuple[Any, str, str]], results: Sequence[SSAValue]) -> None:
    """Register the checks of an op's regions with the builder of the surrounding block."""
    for (_, message, error), passed in zip(checks, results, strict=True):
        b.checks.append((passed, message, error))
