"""gather and scatter at the indices of an iota."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.ir import SSAValue

from lazytpu.ir.builder import Builder
from lazytpu.lowering import emit
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.xla.evaluate import evaluate
from tests.lowering.harness import module_of
from tests.passes.modules import keeps, rewrites

TAKE = "collapsed_slice_dims = [0] start_index_map = [0]"
ADD = "update_window_dims = [1] inserted_window_dims = [0] scatter_dims_to_operand_dims = [0] index_vector_dim = 1"


def test_first_rows_are_a_slice() -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<5x3xf32>",
        f"""
        %i = lazytpu.iota dim = 0 : tensor<4xi32>
        %0 = lazytpu.gather %x, %i offset_dims = [1] {TAKE} index_vector_dim = 1 slice_sizes = [1, 3]
             : (tensor<5x3xf32>, tensor<4xi32>) -> tensor<4x3xf32>
        func.return %0 : tensor<4x3xf32>""",
        """
        %0 = lazytpu.slice %x starts = [0, 0] limits = [4, 3] strides = [1, 1] : (tensor<5x3xf32>) -> tensor<4x3xf32>
        func.return %0 : tensor<4x3xf32>""",
    )


def test_positions_of_a_batch() -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<4x3xf32>",
        f"""
        %i = lazytpu.iota dim = 0 : tensor<4xi32>
        %b = lazytpu.broadcast_in_dim %i dims = [1] : (tensor<4xi32>) -> tensor<2x4xi32>
        %0 = lazytpu.gather %x, %b offset_dims = [2] {TAKE} index_vector_dim = 2 slice_sizes = [1, 3]
             : (tensor<4x3xf32>, tensor<2x4xi32>) -> tensor<2x4x3xf32>
        func.return %0 : tensor<2x4x3xf32>""",
        """
        %0 = lazytpu.broadcast_in_dim %x dims = [1, 2] : (tensor<4x3xf32>) -> tensor<2x4x3xf32>
        func.return %0 : tensor<2x4x3xf32>""",
    )


def test_adding_to_all_rows() -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<4x3xf32>, %u : tensor<4x3xf32>",
        f"""
        %i = lazytpu.iota dim = 0 : tensor<4xi32>
        %0 = lazytpu.scatter add %x, %i, %u {ADD}
             : (tensor<4x3xf32>, tensor<4xi32>, tensor<4x3xf32>) -> tensor<4x3xf32>
        func.return %0 : tensor<4x3xf32>""",
        "%0 = lazytpu.add %x, %u : tensor<4x3xf32>\nfunc.return %0 : tensor<4x3xf32>",
    )


STAYS = {
    "more than there are": f"""
        %i = lazytpu.iota dim = 0 : tensor<5xi32>
        %0 = lazytpu.gather %x, %i offset_dims = [1] {TAKE} index_vector_dim = 1 slice_sizes = [1, 3]
             : (tensor<4x3xf32>, tensor<5xi32>) -> tensor<5x3xf32>
        func.return %0 : tensor<5x3xf32>""",
    "parts of rows": f"""
        %i = lazytpu.iota dim = 0 : tensor<4xi32>
        %0 = lazytpu.gather %x, %i offset_dims = [1] {TAKE} index_vector_dim = 1 slice_sizes = [1, 2]
             : (tensor<4x3xf32>, tensor<4xi32>) -> tensor<4x2xf32>
        func.return %0 : tensor<4x2xf32>""",
    "another kind": f"""
        %i = lazytpu.iota dim = 0 : tensor<4xi32>
        %0 = lazytpu.scatter mul %x, %i, %x {ADD}
             : (tensor<4x3xf32>, tensor<4xi32>, tensor<4x3xf32>) -> tensor<4x3xf32>
        func.return %0 : tensor<4x3xf32>""",
}


@pytest.mark.parametrize("case", STAYS)
def test_other_indices_stay(case: str) -> None:
    keeps("canonicalize", "%x : tensor<4x3xf32>", STAYS[case])


def _take(b: Builder, x: SSAValue, shape: tuple[int, ...], dim: int, along: int, at: int) -> SSAValue:
    """Slices of x along `along` at an iota of `shape` along `dim`; the batch stands at dimension `at` of the result."""
    rank, sizes = len(shape) + 1, [1 if d == along else n for d, n in enumerate((4, 3))]
    index = b.iota("i32", shape, dim)
    batch = range(at, at + len(shape))
    return b.gather(
        x,
        index,
        offset_dims=[d for d in range(rank) if d not in batch],
        collapsed_slice_dims=[along],
        start_index_map=[along],
        index_vector_dim=len(shape),
        slice_sizes=sizes,
    )


@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(("shape", "dim"), [((3,), 0), ((2, 3), 1), ((3, 2), 0), ((1, 2, 1), 1)])
def test_gathers_keep_their_values(shape: tuple[int, ...], dim: int, along: int, at: int) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    module = module_of(lambda b, v: _take(b, v, shape, dim, along, at), ("f32", (4, 3)))
    (expected,) = evaluate(emit(module), [x])
    run_pipeline(module, passes="canonicalize", verify=True)
    assert "gather" not in str(module)
    np.testing.assert_array_equal(evaluate(emit(module), [x])[0], expected)


@pytest.mark.parametrize("along", [0, 1])
@pytest.mark.parametrize("window", [0, 1])
def test_scatters_keep_their_values(along: int, window: int) -> None:
    x = np.array([[0.0, -0.0, 1.0, 2.0], [3.0, 4.0, -0.0, 5.0], [6.0, 7.0, 8.0, 9.0]], np.float32)
    u = np.full((2, x.shape[1 - along])[:: 1 if window else -1], -0.0, np.float32)

    def build(b: Builder, v: SSAValue, w: SSAValue) -> SSAValue:
        return b.scatter(
            v, b.iota("i32", (2,), 0), w, kind="add",
            update_window_dims=[window], inserted_window_dims=[along],
            scatter_dims_to_operand_dims=[along], index_vector_dim=1,
        )  # fmt: skip

    module = module_of(build, ("f32", x.shape), ("f32", u.shape))
    (expected,) = evaluate(emit(module), [x, u])
    run_pipeline(module, passes="canonicalize", verify=True)
    assert "scatter" not in str(module)
    (actual,) = evaluate(emit(module), [x, u])
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(np.signbit(actual), np.signbit(expected))
