"""Gathers, scatters and slices at run-time positions, at every size: clamped and left out at the true size."""

from __future__ import annotations

import numpy as np
import pytest

from lazytpu.ir.types import shape_of
from tests.passes.padding.sized import compiled, same_at_every_size

ONE = {"n": (1, 5)}
SOME = [{"n": 1}, {"n": 4}]


def rows(b, x, index):
    """x[index] of indices [k]."""
    width = shape_of(x)[1:]
    return b.gather(
        x, index, offset_dims=range(1, 1 + len(width)), collapsed_slice_dims=(0,), start_index_map=(0,),
        index_vector_dim=1, slice_sizes=(1, *width),
    )  # fmt: skip


def write_rows(b, x, index, updates, kind):
    return b.scatter(
        x, index, updates, kind=kind, update_window_dims=range(1, len(shape_of(x))), inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
    )  # fmt: skip


GATHERS = {
    "rows of a table": (lambda b, x, i, n: rows(b, x, i), ["f32[7,3]", "i64[n]"], {}),
    "sized rows": (lambda b, x, i, n: rows(b, x, i), ["f32[n,3]", "i64[4]"], ONE),
    "sized rows, narrow indices": (lambda b, x, i, n: rows(b, x, i), ["f32[n,3]", "i8[4]"], ONE),
    "sized rows, unsigned indices": (lambda b, x, i, n: rows(b, x, i), ["f32[n,3]", "ui32[4]"], ONE),
    "sized windows": (lambda b, x, i, n: rows(b, x, i), ["f32[7,n]", "i32[4]"], {}),
    "all sized": (lambda b, x, i, n: rows(b, x, i), ["f32[n,n]", "i32[n]"], ONE),
    "pairs": (
        lambda b, x, i, n: b.gather(
            x, i, offset_dims=(1,), collapsed_slice_dims=(1,), start_index_map=(1, 0), index_vector_dim=1,
            slice_sizes=(2, 1),
        ),
        ["f32[n+1,n]", "i32[4,2]"],
        ONE,
    ),
    "batched": (
        lambda b, x, i, n: b.gather(
            x, i, offset_dims=(), collapsed_slice_dims=(1,), start_index_map=(1,), index_vector_dim=2,
            slice_sizes=(1, 1), operand_batching_dims=(0,), start_indices_batching_dims=(0,),
        ),
        ["f32[n,7]", "i32[n,2,1]"],
        ONE,
    ),
    "batched, sized": (
        lambda b, x, i, n: b.gather(
            x, i, offset_dims=(), collapsed_slice_dims=(1,), start_index_map=(1,), index_vector_dim=2,
            slice_sizes=(1, 1), operand_batching_dims=(0,), start_indices_batching_dims=(0,),
        ),
        ["f32[3,n]", "i32[3,n,1]"],
        ONE,
    ),
    "windows not indexed": (
        lambda b, x, i, n: b.gather(
            x, i, offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0,), index_vector_dim=1,
            slice_sizes=(2, n - 1),
        ),
        ["f32[3,n]", "i32[2,1]"],
        ONE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GATHERS)
def test_gather(name: str) -> None:
    build, arguments, symbols = GATHERS[name]
    same_at_every_size(build, arguments, symbols or {"n": (0, 5)})


SCATTERS = {
    "sized updates": ["f32[7,3]", "i64[n]", "f32[n,3]"],
    "sized rows": ["f32[n,3]", "i64[4]", "f32[4,3]"],
    "sized rows and updates": ["f32[n,3]", "i32[n]", "f32[n,3]"],
    "sized windows": ["f32[7,n]", "i32[4]", "f32[4,n]"],
    "unsigned": ["f32[n,3]", "ui8[4]", "f32[4,3]"],
    "booleans": ["i1[n]", "i32[n+1]", "i1[n+1]"],
}


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("kind", ["set", "add", "max"])
def test_scatter(name: str, kind: str) -> None:
    def distinct(i, array, rng):
        # The order of several updates of one element is unspecified.
        return rng.permutation(np.arange(array.size) - (array.dtype.kind == "i")) if i == 1 else array

    def build(b, x, i, u, n):
        return write_rows(b, x, i, u, kind)

    same_at_every_size(build, SCATTERS[name], ONE, values=distinct, sizes=SOME, run=compiled)


@pytest.mark.parametrize("kind", ["set", "add"])
def test_scatter_of_windows_that_would_end_in_the_padding(kind: str) -> None:
    """They are left out whole, as at the exact size."""

    def build(b, x, i, u, n):
        return b.scatter(
            x, i, u, kind=kind, update_window_dims=(1,), inserted_window_dims=(), scatter_dims_to_operand_dims=(0,),
            index_vector_dim=1,
        )  # fmt: skip

    def near_the_end(i, array, rng):
        return np.array([-1, 0, 3]).reshape(3, 1) if i == 1 else array

    arguments = ["f32[n]", "i32[3,1]", "f32[3,2]"]
    same_at_every_size(build, arguments, {"n": (2, 6)}, values=near_the_end, sizes=[{"n": 4}, {"n": 5}], run=compiled)


def test_scatter_keeps_the_sign_of_zeros_where_padding_would_be_added() -> None:
    def build(b, x, i, u, n):
        return b.bitcast_convert(write_rows(b, x, i, u, "add"), "ui32")

    def zeros(i, array, rng):
        return np.zeros_like(array) if i == 1 else np.full_like(array, -0.0)

    sizes = [{"n": 0}, {"n": 2}]
    same_at_every_size(build, ["f32[4,2]", "i32[n]", "f32[n,2]"], values=zeros, sizes=sizes, run=compiled)


def test_scatter_add_of_windows_that_are_sized_over_a_table() -> None:
    def build(b, x, i, u, n):
        first = b.broadcast_in_dim(b.constant(0, "i32"), (2, 1), ())
        return b.scatter(
            x, first, u, kind="add", update_window_dims=(1,), inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,), index_vector_dim=1,
        )  # fmt: skip

    same_at_every_size(build, ["f32[3,7]", "i32[2]", "f32[2,n]"], tolerance=1e-6, sizes=SOME, run=compiled)


def starts(values):
    return lambda i, array, rng: np.full_like(array, values[i]) if array.shape == () else array


@pytest.mark.parametrize("at", [-2, 0, 2, 9])
@pytest.mark.parametrize("dtype", ["i64", "i8"])
def test_dynamic_slice(at: int, dtype: str) -> None:
    def build(b, x, i, j, n):
        places = ([j, i], (2, 1)), ([j, i], (1, n)), ([i, j], (1, n - 1))
        return [b.dynamic_slice(x, *place) for place in places]

    same_at_every_size(build, ["f32[3,n]", f"{dtype}[]", f"{dtype}[]"], ONE, values=starts([0, at, 1]), sizes=SOME)


@pytest.mark.parametrize("at", [0, 1, 9])
def test_dynamic_slice_of_a_table(at: int) -> None:
    """The last start of a slice of n is later at a smaller size: there must be room for the slice of the bound."""

    def build(b, x, i, n):
        return b.dynamic_slice(x, [i], (n,))

    same_at_every_size(build, ["f32[7]", "i32[]"], values=starts([0, at]))


UPDATES = {
    "element": ["f32[3,n]", "f32[3,1]"],
    "part": ["f32[3,n]", "f32[2,n-1]"],
    "whole": ["f32[3,n]", "f32[3,n]"],
    "of a table": ["f32[3,7]", "f32[2,n]"],
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("at", [0, 2, 9])
def test_dynamic_update_slice(name: str, at: int) -> None:
    def build(b, x, u, i, j, n):
        return b.dynamic_update_slice(x, u, [j, i])

    same_at_every_size(build, [*UPDATES[name], "i32[]", "i32[]"], ONE, values=starts([0, 0, at, 1]), sizes=SOME)


def test_overwritten_constant_is_padded_like_its_updates() -> None:
    """A constant adapts to any padding; its overwritten result has the padding of the updates."""

    def build(b, x, n):
        merged = b.reshape(x, (3 * n,))
        zeros = b.constant(0, "f32", (2, 3 * n))
        at = b.constant(1, "i32")
        row = b.dynamic_update_slice(zeros, b.reshape(merged, (1, 3 * n)), [at, b.constant(0, "i32")])
        added = write_rows(b, zeros, b.reshape(at, (1,)), b.reshape(merged, (1, 3 * n)), "add")
        return [b.reduce("add", y, (1,)) for y in (row, added)]

    same_at_every_size(build, ["f32[3,n]"], ONE, tolerance=1e-5, sizes=SOME, run=compiled)


def test_rows_of_a_constant_written_along_the_padding() -> None:
    def build(b, x, i, n):
        written = write_rows(b, b.constant(0, "f32", (3 * n,)), i, b.constant(1, "f32", (2,)), "set")
        return b.add(written, b.reshape(x, (3 * n,)))

    same_at_every_size(build, ["f32[3,n]", "i32[2]"], ONE, sizes=SOME, run=compiled)


def test_batches_of_equal_indices() -> None:
    def build(b, x, n):
        merged = b.reshape(x, (3 * n, 2))
        index = b.constant(1, "i32", (3 * n, 1, 1))
        picked = b.gather(
            merged, index, offset_dims=(), collapsed_slice_dims=(1,), start_index_map=(1,), index_vector_dim=2,
            slice_sizes=(1, 1), operand_batching_dims=(0,), start_indices_batching_dims=(0,),
        )  # fmt: skip
        return b.reduce("add", picked, (0, 1))

    same_at_every_size(build, ["f32[3,n,2]"], ONE, tolerance=1e-5, sizes=SOME)
