"""Ops that move elements."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lowering.harness import assert_close, compiled, interpreted, values


@pytest.mark.parametrize("dtype", ["f32", "i1", "c64", "bf16"])
def test_moving_elements(dtype):
    x, row = values(dtype, (2, 3, 4)), values(dtype, (4,), seed=1)
    results = interpreted(
        lambda b, x, row: [
            b.broadcast_to(row, (2, 4)),
            b.broadcast_in_dim(row, (4, 2), [0]),
            b.broadcast_in_dim(b.reshape(row, (4, 1)), (4, 5), [0, 1]),
            b.reshape(x, (6, 4)),
            b.transpose(x, (2, 0, 1)),
            b.slice(x, (0, 1, 0), (2, 3, 4), (1, 1, 2)),
            b.concatenate([x, x], 1),
            b.reverse(x, (0, 2)),
            b.barrier(x),
        ],
        x,
        row,
    )
    expected = [
        np.broadcast_to(row, (2, 4)),
        np.broadcast_to(row[:, None], (4, 2)),
        np.broadcast_to(row[:, None], (4, 5)),
        x.reshape(6, 4),
        x.transpose(2, 0, 1),
        x[:, 1:3, ::2],
        np.concatenate([x, x], 1),
        x[::-1, :, ::-1],
        x,
    ]
    for actual, want in zip(results, expected, strict=True):
        assert_close(actual, want)


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_pad(run):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    around, cropped, spread = run(
        lambda b, x, v: [
            b.pad(x, v, (1, 0), (0, 2)),
            b.pad(x, v, (0, -1), (0, 0)),
            b.pad(x, v, (0, 0), (0, 0), (1, 0)),
        ],
        x,
        np.float32(9),
    )
    assert_close(around, np.pad(x, ((1, 0), (0, 2)), constant_values=9))
    assert_close(cropped, x[:, 1:])
    assert_close(spread, np.array([x[0], [9, 9, 9], x[1]], np.float32))


@pytest.mark.parametrize("run", [interpreted, compiled])
def test_empty_tensors(run):
    x = np.zeros((0, 3), np.float32)
    transposed, joined, padded = run(
        lambda b, x, v: [b.transpose(x, (1, 0)), b.concatenate([x, x], 0), b.pad(x, v, (1, 0), (1, 0))],
        x,
        np.float32(2),
    )
    assert transposed.shape == (3, 0)
    assert joined.shape == (0, 3)
    assert_close(padded, np.full((2, 3), 2, np.float32))
