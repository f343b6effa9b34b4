"""Transposes sink past reshapes and scales to the ops that fold them."""

from __future__ import annotations

import pytest

from lazytpu.passes.patterns.moves import DimGroup, groups
from tests.passes.modules import keeps, rewrites


@pytest.mark.parametrize(
    ("source", "result", "expected"),
    [
        ((6, 4), (2, 3, 4), [([0], [0, 1]), ([1], [2])]),
        ((2, 3, 4), (6, 4), [([0, 1], [0]), ([2], [1])]),
        ((4, 6), (8, 3), [([0, 1], [0, 1])]),
        ((2, 3), (1, 2, 1, 3, 1), [([0], [0, 1, 2]), ([1], [3, 4])]),
        ((2, 3), (6, 1), [([0, 1], [0, 1])]),
    ],
)
def test_groups_of_a_reshape(
    source: tuple[int, ...], result: tuple[int, ...], expected: list[tuple[list, list]]
) -> None:
    assert groups(list(enumerate(source)), result) == [DimGroup(*dims) for dims in expected]


def test_gradient_of_a_weight_from_a_batch() -> None:
    """g.t() @ x for g[B, T, N] and x[B, T, K]: one product of g as stored."""
    rewrites(
        "canonicalize",
        "%g : tensor<2x8x5xf32>, %x : tensor<16x4xf32>",
        """
        %0 = lazytpu.transpose %g [2, 0, 1] : (tensor<2x8x5xf32>) -> tensor<5x2x8xf32>
        %1 = lazytpu.reshape %0 : (tensor<5x2x8xf32>) -> tensor<5x16xf32>
        %2 = lazytpu.dot_general %1, %x lhs_contract = [1] rhs_contract = [0] precision = highest
             : (tensor<5x16xf32>, tensor<16x4xf32>) -> tensor<5x4xf32>
        func.return %2 : tensor<5x4xf32>""",
        """
        %0 = lazytpu.reshape %g : (tensor<2x8x5xf32>) -> tensor<16x5xf32>
        %1 = lazytpu.dot_general %0, %x lhs_contract = [0] rhs_contract = [0] precision = highest
             : (tensor<16x5xf32>, tensor<16x4xf32>) -> tensor<5x4xf32>
        func.return %1 : tensor<5x4xf32>""",
    )


def test_attention_scores() -> None:
    """(q * s) @ (k.transpose * s) of heads that torch splits and merges with the batch for a bmm."""
    rewrites(
        "canonicalize",
        "%q : tensor<2x8x12xf32>, %k : tensor<2x8x12xf32>, %s : tensor<f32>",
        """
        %0 = lazytpu.reshape %q : (tensor<2x8x12xf32>) -> tensor<2x8x3x4xf32>
        %1 = lazytpu.transpose %0 [0, 2, 1, 3] : (tensor<2x8x3x4xf32>) -> tensor<2x3x8x4xf32>
        %2 = lazytpu.broadcast_in_dim %s dims = [] : (tensor<f32>) -> tensor<2x3x8x4xf32>
        %3 = lazytpu.mul %1, %2 : tensor<2x3x8x4xf32>
        %4 = lazytpu.transpose %k [0, 2, 1] : (tensor<2x8x12xf32>) -> tensor<2x12x8xf32>
        %5 = lazytpu.reshape %4 : (tensor<2x12x8xf32>) -> tensor<2x3x4x8xf32>
        %6 = lazytpu.broadcast_in_dim %s dims = [] : (tensor<f32>) -> tensor<2x3x4x8xf32>
        %7 = lazytpu.mul %5, %6 : tensor<2x3x4x8xf32>
        %8 = lazytpu.reshape %3 : (tensor<2x3x8x4xf32>) -> tensor<6x8x4xf32>
        %9 = lazytpu.reshape %7 : (tensor<2x3x4x8xf32>) -> tensor<6x4x8xf32>
        %10 = lazytpu.dot_general %8, %9 lhs_batch = [0] rhs_batch = [0] lhs_contract = [2] rhs_contract = [1]
              precision = highest : (tensor<6x8x4xf32>, tensor<6x4x8xf32>) -> tensor<6x8x8xf32>
        %11 = lazytpu.reshape %10 : (tensor<6x8x8xf32>) -> tensor<2x3x8x8xf32>
        func.return %11 : tensor<2x3x8x8xf32>""",
        """
        %0 = lazytpu.reshape %q : (tensor<2x8x12xf32>) -> tensor<2x8x3x4xf32>
        %1 = lazytpu.broadcast_in_dim %s dims = [] : (tensor<f32>) -> tensor<2x8x3x4xf32>
        %2 = lazytpu.mul %0, %1 : tensor<2x8x3x4xf32>
        %3 = lazytpu.reshape %k : (tensor<2x8x12xf32>) -> tensor<2x8x3x4xf32>
        %4 = lazytpu.broadcast_in_dim %s dims = [] : (tensor<f32>) -> tensor<2x8x3x4xf32>
        %5 = lazytpu.mul %3, %4 : tensor<2x8x3x4xf32>
        %6 = lazytpu.dot_general %2, %5 lhs_batch = [0, 2] rhs_batch = [0, 2] lhs_contract = [3] rhs_contract = [3]
              precision = highest : (tensor<2x8x3x4xf32>, tensor<2x8x3x4xf32>) -> tensor<2x3x8x8xf32>
        func.return %6 : tensor<2x3x8x8xf32>""",
    )


def test_two_orders_share_one_transpose() -> None:
    """The joint gradient of q, k and v is used unchanged and transposed; its elements are moved once."""
    rewrites(
        "canonicalize",
        "%x : tensor<3x2x4xf32>, %w : tensor<12x5xf32>, %v : tensor<2x5xf32>",
        """
        %0 = lazytpu.transpose %x [1, 0, 2] : (tensor<3x2x4xf32>) -> tensor<2x3x4xf32>
        %1 = lazytpu.reshape %0 : (tensor<2x3x4xf32>) -> tensor<2x12xf32>
        %2 = lazytpu.dot_general %1, %w lhs_contract = [1] rhs_contract = [0] precision = highest
             : (tensor<2x12xf32>, tensor<12x5xf32>) -> tensor<2x5xf32>
        %3 = lazytpu.transpose %x [0, 2, 1] : (tensor<3x2x4xf32>) -> tensor<3x4x2xf32>
        %4 = lazytpu.reshape %3 : (tensor<3x4x2xf32>) -> tensor<12x2xf32>
        %5 = lazytpu.dot_general %4, %v lhs_contract = [1] rhs_contract = [0] precision = highest
             : (tensor<12x2xf32>, tensor<2x5xf32>) -> tensor<12x5xf32>
        func.return %2, %5 : tensor<2x5xf32>, tensor<12x5xf32>""",
        """
        %0 = lazytpu.transpose %x [1, 0, 2] : (tensor<3x2x4xf32>) -> tensor<2x3x4xf32>
        %1 = lazytpu.reshape %0 : (tensor<2x3x4xf32>) -> tensor<2x12xf32>
        %2 = lazytpu.dot_general %1, %w lhs_contract = [1] rhs_contract = [0] precision = highest
             : (tensor<2x12xf32>, tensor<12x5xf32>) -> tensor<2x5xf32>
        %3 = lazytpu.transpose %x [1, 0, 2] : (tensor<3x2x4xf32>) -> tensor<2x3x4xf32>
        %4 = lazytpu.reshape %3 : (tensor<2x3x4xf32>) -> tensor<2x12xf32>
        %5 = lazytpu.dot_general %4, %v lhs_contract = [0] rhs_contract = [0] precision = highest
             : (tensor<2x12xf32>, tensor<2x5xf32>) -> tensor<12x5xf32>
        func.return %2, %5 : tensor<2x5xf32>, tensor<12x5xf32>""",
    )


def test_added_dimension_sinks_past_numbers() -> None:
    """The mean of a normalization, as a column."""
    rewrites(
        "canonicalize",
        "%x : tensor<4xf32>",
        """
        %0 = lazytpu.reshape %x : (tensor<4xf32>) -> tensor<4x1xf32>
        %1 = lazytpu.constant 3.0 : tensor<4x1xf32>
        %2 = lazytpu.div %0, %1 : tensor<4x1xf32>
        %3 = lazytpu.rsqrt %2 : tensor<4x1xf32>
        %4 = lazytpu.broadcast_in_dim %3 dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x3xf32>
        func.return %4 : tensor<4x3xf32>""",
        """
        %0 = lazytpu.constant 3.0 : tensor<4xf32>
        %1 = lazytpu.div %x, %0 : tensor<4xf32>
        %2 = lazytpu.rsqrt %1 : tensor<4xf32>
        %3 = lazytpu.broadcast_in_dim %2 dims = [0] : (tensor<4xf32>) -> tensor<4x3xf32>
        func.return %3 : tensor<4x3xf32>""",
    )


def test_equally_transposed_operands() -> None:
    rewrites(
        "canonicalize",
        "%p : tensor<2x3xi1>, %x : tensor<2x3xf32>, %y : tensor<2x3xf32>",
        """
        %0 = lazytpu.transpose %p [1, 0] : (tensor<2x3xi1>) -> tensor<3x2xi1>
        %1 = lazytpu.transpose %x [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
        %2 = lazytpu.transpose %y [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
        %3 = lazytpu.select %0, %1, %2 : (tensor<3x2xi1>, tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
        func.return %3 : tensor<3x2xf32>""",
        """
        %0 = lazytpu.select %p, %x, %y : (tensor<2x3xi1>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
        %1 = lazytpu.transpose %0 [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
        func.return %1 : tensor<3x2xf32>""",
    )


def test_select_by_a_number_moves_too() -> None:
    rewrites(
        "canonicalize",
        "%p : tensor<i1>, %x : tensor<2x3xf32>",
        """
        %0 = lazytpu.constant 0.0 : tensor<3x2xf32>
        %1 = lazytpu.transpose %x [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
        %2 = lazytpu.select %p, %0, %1 : (tensor<i1>, tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>
        func.return %2 : tensor<3x2xf32>""",
        """
        %0 = lazytpu.constant 0.0 : tensor<2x3xf32>
        %1 = lazytpu.select %p, %0, %x : (tensor<i1>, tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
        %2 = lazytpu.transpose %1 [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
        func.return %2 : tensor<3x2xf32>""",
    )


STAYS = {
    "operands transposed differently": (
        "%x : tensor<2x2x2xf32>, %y : tensor<2x2x2xf32>",
        """
        %0 = lazytpu.transpose %x [1, 0, 2] : tensor<2x2x2xf32>
        %1 = lazytpu.transpose %y [2, 1, 0] : tensor<2x2x2xf32>
        %2 = lazytpu.add %0, %1 : tensor<2x2x2xf32>
        func.return %2 : tensor<2x2x2xf32>""",
    ),
    "a transpose that something else needs": (
        "%x : tensor<2x3xf32>",
        """
        %0 = lazytpu.transpose %x [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
        %1 = lazytpu.exp %0 : tensor<3x2xf32>
        func.return %0, %1 : tensor<3x2xf32>, tensor<3x2xf32>""",
    ),
    "a reshape that merges what was apart": (
        "%x : tensor<2x3x4x5xf32>",
        """
        %0 = lazytpu.transpose %x [0, 2, 1, 3] : (tensor<2x3x4x5xf32>) -> tensor<2x4x3x5xf32>
        %1 = lazytpu.reshape %0 : (tensor<2x4x3x5xf32>) -> tensor<8x3x5xf32>
        func.return %1 : tensor<8x3x5xf32>""",
    ),
    "a reshape across dimensions": (
        "%x : tensor<4x6xf32>",
        """
        %0 = lazytpu.transpose %x [1, 0] : (tensor<4x6xf32>) -> tensor<6x4xf32>
        %1 = lazytpu.reshape %0 : (tensor<6x4xf32>) -> tensor<3x8xf32>
        func.return %1 : tensor<3x8xf32>""",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_other_moves_stay(case: str) -> None:
    keeps("canonicalize", *STAYS[case])


def test_batch_merged_from_different_dimensions_stays() -> None:
    keeps(
        "canonicalize",
        "%x : tensor<2x3x4x5xf32>, %y : tensor<3x2x5x7xf32>",
        """
        %0 = lazytpu.reshape %x : (tensor<2x3x4x5xf32>) -> tensor<6x4x5xf32>
        %1 = lazytpu.reshape %y : (tensor<3x2x5x7xf32>) -> tensor<6x5x7xf32>
        %2 = lazytpu.dot_general %0, %1 lhs_batch = [0] rhs_batch = [0] lhs_contract = [2] rhs_contract = [1]
             precision = highest : (tensor<6x4x5xf32>, tensor<6x5x7xf32>) -> tensor<6x4x7xf32>
        func.return %2 : tensor<6x4x7xf32>""",
    )
