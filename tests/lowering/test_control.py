"""Branches and loops compute the results of Python's, in the reference interpreter and compiled."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import IntegerAttr

from lazytpu.ir.builder import Builder
from lazytpu.lowering import emit
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.compiling import QUICK
from tests.lowering.harness import assert_close, compiled, interpreted, module_of, values

RUNS = (interpreted, compiled)
X, Y = values("f32", (4,)), values("f32", (4,), seed=1)


@pytest.mark.parametrize("run", RUNS)
def test_branch(run) -> None:
    def build(b: Builder, c, x, y):
        return b.if_(c, lambda b, x: (b.add(x, y), x), lambda b, x: (b.neg(x), b.mul(x, y)), [x])

    for condition, expected in ((True, (X + Y, X)), (False, (-X, X * Y))):
        for actual, wanted in zip(run(build, np.asarray(condition), X, Y), expected, strict=True):
            assert_close(actual, wanted)


@pytest.mark.parametrize("run", RUNS)
def test_loops_in_branches_in_loops(run) -> None:
    def build(b: Builder, n, x, y):
        def double(b: Builder, s):
            return b.repeat(n, [s], lambda b, j, s: b.add(s, s))

        def step(b: Builder, i, s):
            even = b.compare("EQ", b.and_(i, b.constant(1, "i32")), b.constant(0, "i32"))
            return b.if_(even, lambda b: double(b, s), lambda b: b.sub(s, y))

        return b.repeat(5, [x], step)

    for n in (0, 1, 3):
        expected = X
        for i in range(5):
            expected = expected * 2**n if i % 2 == 0 else expected - Y
        (actual,) = run(build, np.asarray(n, np.int64), X, Y)
        assert_close(actual, expected)


@pytest.mark.parametrize("run", RUNS)
def test_loop_with_a_condition_on_its_values(run) -> None:
    def build(b: Builder, x, step):
        def goes(b: Builder, x, n):
            return b.compare("LT", b.reduce("add", x, (0,)), b.constant(100, "i32"))

        return b.while_(
            [x, b.constant(0, "i32")], goes, lambda b, x, n: (b.add(x, step), b.add(n, b.constant(1, "i32")))
        )

    for start, times in ((0, 13), (25, 0)):
        last, count = run(build, np.full(4, start, np.int32), np.full(4, 2, np.int32))
        assert count == times
        assert (last == start + 2 * times).all()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "f8e5m2"])
def test_scan(dtype: str, reverse: bool) -> None:
    rows = values("f32" if dtype == "f8e5m2" else dtype, (5, 4), seed=2)
    start = rows[0] * 0

    def build(b: Builder, start, rows):
        if dtype == "f8e5m2":  # carried and stacked as bits
            start, rows = b.convert(start, dtype), b.convert(rows, dtype)

        def step(b: Builder, s, row):
            if dtype == "f8e5m2":
                return row, s
            s = b.add(s, row)
            return s, s

        (last,), (steps,) = b.scan([start], [rows], step, 5, reverse=reverse)
        return (b.convert(last, "f32"), b.convert(steps, "f32")) if dtype == "f8e5m2" else (last, steps)

    last, steps = compiled(build, start, rows)
    order = rows[::-1] if reverse else rows
    expected, carried = [], start
    for row in order:
        if dtype == "f8e5m2":
            expected.append(carried)
            carried = row.astype(ml_dtypes.float8_e5m2).astype(np.float32)
        else:
            carried = carried + row
            expected.append(carried)
    stacked = np.stack(expected[::-1] if reverse else expected)
    assert_close(last, carried)
    assert_close(steps, stacked)


@pytest.mark.parametrize("run", RUNS)
def test_checks_concern_executed_branches_and_iterations(run) -> None:
    def build(b: Builder, c, x, limit):
        def below(b: Builder, x):
            b.check(b.compare("LT", x, b.broadcast_in_dim(limit, (4,), ())), "too large")
            return x

        def grow(b: Builder, x):
            return b.repeat(4, [x], lambda b, i, x: b.add(below(b, x), x))

        results = b.if_(c, grow, lambda b, x: x, [x])
        ((passed, _, _),) = b.checks
        return [*results, passed]

    ones = np.ones(4, np.float32)
    for condition, limit, passes in ((True, 9, True), (True, 8, False), (True, 1, False), (False, 1, True)):
        assert run(build, np.asarray(condition), ones, np.asarray(limit, np.float32))[1] == passes


def test_reductions_in_a_loop_round_as_outside() -> None:
    """The argument of a region is not an argument of the program: see `Emission.settled`."""
    rows = values("bf16", (3, 64), seed=3)
    total = values("bf16", (64,), seed=4)

    def step(b: Builder, total, row):
        return total, b.reduce("add", b.mul(b.mul(row, total), total), (0,))

    _, sums = compiled(lambda b, t, rows: [v for vs in b.scan([t], [rows], step, 3) for v in vs], total, rows)
    for row, actual in zip(rows, sums, strict=True):
        (alone,) = compiled(lambda b, r, t: b.reduce("add", b.mul(b.mul(r, t), t), (0,)), row, total)
        assert actual == alone


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 13])
def test_associative_scan(length: int) -> None:
    """Products of 2x2 matrices, whose order matters, and running maxima in one scan."""
    matrices, numbers = values("i64", (length, 2, 2)), values("f32", (length,), seed=5)
    matrices = matrices % 3

    def build(b: Builder, m, x):
        def combine(left, right):
            product = b.dot_general(left[0], right[0], (0,), (0,), (2,), (1,))
            return [product, b.max(left[1], right[1])]

        return b.associative_scan(combine, [m, x])

    products, maxima = compiled(build, matrices, numbers)
    expected = [matrices[0]]
    for matrix in matrices[1:]:
        expected.append(expected[-1] @ matrix)
    assert (products == np.stack(expected)).all()
    assert (maxima == np.maximum.accumulate(numbers)).all()


def test_loop_reuses_the_memory_of_a_donated_argument() -> None:
    def build(b: Builder, w, g):
        return b.repeat(5, [w], lambda b, i, w: b.sub(w, g))

    types = [("f32", (64, 64))] * 2
    module = module_of(build, *types, arguments=[{"lazytpu.alias": IntegerAttr(0, 64)}, {}])
    program = Program.compile(emit(module), options=QUICK)
    weight, gradient = (client.to_device(np.ones((64, 64), np.float32)) for _ in "wg")
    address = weight.unsafe_buffer_pointer()
    (updated,) = program.run([weight, gradient])
    assert weight.is_deleted()
    assert updated.unsafe_buffer_pointer() == address
    assert (client.to_host(updated) == -4).all()
