"""Sorting as in torch."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from tests.lowering.harness import assert_close, compiled, interpreted, values

NAN = float("nan")
CASES = [
    np.array([[3.0, NAN, -1.0, 0.0, -0.0, NAN, np.inf, -np.inf, 3.0]], np.float32),
    values("f32", (4, 50)),
    np.array([[3, -1, 3, 0, 127, -128]], np.int8),
    np.array([[2**63, 0, 2**64 - 1, 5, 5]], np.uint64),
    np.array([[True, False, True, False]]),
]


def argsort(b, x, dim, descending):
    return b.sort([x, b.iota("i64", x.type.get_shape(), dim)], dim, descending)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("run", [interpreted, compiled])
@pytest.mark.parametrize("x", CASES, ids=lambda x: str(x.dtype) + str(x.shape[1]))
def test_sort(x, run, descending):
    ordered, order = run(lambda b, x: argsort(b, x, 1, descending), x)
    expected = torch.sort(torch.from_numpy(x), dim=1, stable=True, descending=descending)
    assert_close(ordered, expected.values.numpy())
    assert order.tolist() == expected.indices.tolist()
    np.testing.assert_array_equal(np.signbit(ordered), np.signbit(expected.values.numpy()))


def test_compiler_does_not_sort_constants():
    """XLA's evaluator takes 30 us per element, here half a minute."""
    numbers = np.tile(np.arange(16.0, 0.0, -1.0), (65_536, 1))
    started = time.process_time()
    (ordered,) = compiled(lambda b: b.sort([b.array(numbers, "f64")], 1))
    assert time.process_time() - started < 10
    assert_close(ordered, numbers[:, ::-1])


def test_sort_along_the_first_dimension_with_more_operands():
    x, y = values("f32", (6, 3)), values("c64", (6, 3))
    ordered, order, reordered = interpreted(lambda b, x, y: b.sort([x, b.iota("i32", (6, 3), 0), y], 0), x, y)
    expected = np.argsort(x, 0, kind="stable")
    assert_close(ordered, np.take_along_axis(x, expected, 0))
    assert_close(order, expected.astype(np.int32))
    assert_close(reordered, np.take_along_axis(y, expected, 0))
