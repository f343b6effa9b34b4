"""Gathers, scatters and dynamic slices, in and out of bounds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lowering.harness import assert_close, compiled, interpreted, values

RUNS = pytest.mark.parametrize("run", [interpreted, compiled])


def take_rows(b, x, indices):
    return b.gather(
        x, indices, offset_dims=[1], collapsed_slice_dims=[0], start_index_map=[0], index_vector_dim=1,
        slice_sizes=[1, x.type.get_shape()[1]],
    )  # fmt: skip


def put_rows(b, x, indices, updates, kind, **flags):
    return b.scatter(
        x, indices, updates, kind=kind, update_window_dims=[1], inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0], index_vector_dim=1, **flags,
    )  # fmt: skip


@RUNS
@pytest.mark.parametrize("dtype", ["f32", "i1", "bf16", "c64", "i64"])
def test_gather(run, dtype):
    x = values(dtype, (5, 3))
    (actual,) = run(take_rows, x, np.array([4, 0, 0]))
    assert_close(actual, x[[4, 0, 0]])


@RUNS
def test_gather_clamps(run):
    x = values("f32", (5, 3))
    (actual,) = run(take_rows, x, np.array([-7, 99], np.int32))
    assert_close(actual, x[[0, 4]])


@RUNS
def test_batched_gather(run):
    """take_along_dim: one index for each row."""
    x, i = values("f32", (4, 6)), np.array([[0], [5], [2], [2]])
    (actual,) = run(
        lambda b, x, i: b.gather(
            x, i, offset_dims=[], collapsed_slice_dims=[1], start_index_map=[1], index_vector_dim=1,
            slice_sizes=[1, 1], operand_batching_dims=[0], start_indices_batching_dims=[0],
        ),
        x, i,
    )  # fmt: skip
    assert_close(actual, np.take_along_axis(x, i, 1)[:, 0])


@RUNS
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_scatter_adds_in_single_precision(run, dtype):
    """As a sum in half precision, ones stop adding up at 256 (bf16) or 2048 (f16)."""
    x, u = values(dtype, (3, 1)) * 0, values(dtype, (4096, 1)) * 0 + 1
    (actual,) = run(lambda b, x, i, u: put_rows(b, x, i, u, "add"), x, np.ones(4096, np.int64), u)
    assert actual.astype(np.float32).ravel().tolist() == [0, 4096, 0]


@RUNS
@pytest.mark.parametrize("kind", ["set", "add", "mul", "max", "min"])
def test_scatter(run, kind):
    x, u, i = values("f32", (5, 3)), values("f32", (2, 3), seed=1), np.array([3, 0])
    (actual,) = run(lambda b, x, i, u: put_rows(b, x, i, u, kind, unique_indices=True), x, i, u)
    expected = x.copy()
    for row, update in zip(i, u, strict=True):
        function = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(kind)
        expected[row] = function(expected[row], update) if function else update
    assert_close(actual, expected)


@RUNS
def test_scatter_adds_every_update_and_drops_out_of_bounds_ones(run):
    x, i = np.zeros((3, 2), np.float32), np.array([1, 1, -1, 3, 1])
    (actual,) = run(lambda b, x, i, u: put_rows(b, x, i, u, "add"), x, i, np.ones((5, 2), np.float32))
    assert actual.tolist() == [[0, 0], [3, 3], [0, 0]]


@RUNS
def test_scatter_max_keeps_nan(run):
    x = np.array([[np.nan], [1.0]], np.float32)
    (actual,) = run(
        lambda b, x, i, u: put_rows(b, x, i, u, "max"), x, np.array([0, 1]), np.full((2, 1), np.nan, np.float32)
    )
    assert np.isnan(actual).all()


@RUNS
def test_dynamic_slices_clamp(run):
    x, u = np.arange(12, dtype=np.int32).reshape(3, 4), np.full((2, 2), -1, np.int32)
    for start in [(0, 1), (5, -3)]:
        taken, written = run(
            lambda b, x, u, r, c: [b.dynamic_slice(x, [r, c], (2, 2)), b.dynamic_update_slice(x, u, [r, c])],
            x,
            u,
            *map(np.asarray, start),
        )
        row, column = max(0, min(1, start[0])), max(0, min(2, start[1]))
        assert_close(taken, x[row : row + 2, column : column + 2])
        expected = x.copy()
        expected[row : row + 2, column : column + 2] = -1
        assert_close(written, expected)
