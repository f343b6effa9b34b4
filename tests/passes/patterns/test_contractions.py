"""dot_general folds the renaming of dimensions into its dimension numbers."""

from __future__ import annotations

from tests.passes.modules import keeps, rewrites


def test_linear_layer_is_one_dot_on_the_stored_weight() -> None:
    """torch's x @ w.t()."""
    rewrites(
        "canonicalize",
        "%x : tensor<8x4xf32>, %w : tensor<16x4xf32>",
        """
        %0 = lazytpu.transpose %w [1, 0] : (tensor<16x4xf32>) -> tensor<4x16xf32>
        %1 = lazytpu.dot_general %x, %0 lhs_contract = [1] rhs_contract = [0] precision = highest
             : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
        func.return %1 : tensor<8x16xf32>""",
        """
        %0 = lazytpu.dot_general %x, %w lhs_contract = [1] rhs_contract = [1] precision = highest
             : (tensor<8x4xf32>, tensor<16x4xf32>) -> tensor<8x16xf32>
        func.return %0 : tensor<8x16xf32>""",
    )


def test_gradient_of_the_weight_is_one_dot() -> None:
    """(x.t() @ g).t(), as autograd records it for a linear layer."""
    rewrites(
        "canonicalize",
        "%x : tensor<8x4xf32>, %g : tensor<8x16xf32>",
        """
        %0 = lazytpu.transpose %x [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
        %1 = lazytpu.dot_general %0, %g lhs_contract = [1] rhs_contract = [0] precision = highest
             : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
        %2 = lazytpu.transpose %1 [1, 0] : (tensor<4x16xf32>) -> tensor<16x4xf32>
        func.return %2 : tensor<16x4xf32>""",
        """
        %0 = lazytpu.dot_general %g, %x lhs_contract = [0] rhs_contract = [0] precision = highest
             : (tensor<8x16xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
        func.return %0 : tensor<16x4xf32>""",
    )


def test_batched_product_keeps_its_precision_and_result_dtype() -> None:
    """q @ k.transpose(-1, -2) of an attention."""
    rewrites(
        "canonicalize",
        "%q : tensor<2x3x8x4xbf16>, %k : tensor<2x3x8x4xbf16>",
        """
        %0 = lazytpu.transpose %k [0, 1, 3, 2] : (tensor<2x3x8x4xbf16>) -> tensor<2x3x4x8xbf16>
        %1 = lazytpu.dot_general %q, %0 lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [2]
             precision = default : (tensor<2x3x8x4xbf16>, tensor<2x3x4x8xbf16>) -> tensor<2x3x8x8xf32>
        func.return %1 : tensor<2x3x8x8xf32>""",
        """
        %0 = lazytpu.dot_general %q, %k lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [3]
             precision = default : (tensor<2x3x8x4xbf16>, tensor<2x3x8x4xbf16>) -> tensor<2x3x8x8xf32>
        func.return %0 : tensor<2x3x8x8xf32>""",
    )


def test_heads_transposed_out_of_the_projection_fold() -> None:
    """Batch dimensions may come from anywhere: x[B, T, H, D].transpose(1, 2) @ ..."""
    rewrites(
        "canonicalize",
        "%q : tensor<2x8x3x4xf32>, %k : tensor<2x3x4x8xf32>",
        """
        %0 = lazytpu.transpose %q [0, 2, 1, 3] : (tensor<2x8x3x4xf32>) -> tensor<2x3x8x4xf32>
        %1 = lazytpu.dot_general %0, %k lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [2]
             precision = highest : (tensor<2x3x8x4xf32>, tensor<2x3x4x8xf32>) -> tensor<2x3x8x8xf32>
        func.return %1 : tensor<2x3x8x8xf32>""",
        """
        %0 = lazytpu.dot_general %q, %k lhs_batch = [0, 2] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [2]
             precision = highest : (tensor<2x8x3x4xf32>, tensor<2x3x4x8xf32>) -> tensor<2x3x8x8xf32>
        func.return %0 : tensor<2x3x8x8xf32>""",
    )


def test_transpose_that_exchanges_free_dimensions_stays() -> None:
    keeps(
        "canonicalize",
        "%x : tensor<2x3x4xf32>, %y : tensor<4x5xf32>",
        """
        %0 = lazytpu.transpose %x [1, 0, 2] : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
        %1 = lazytpu.dot_general %0, %y lhs_contract = [2] rhs_contract = [0] precision = highest
             : (tensor<3x2x4xf32>, tensor<4x5xf32>) -> tensor<3x2x5xf32>
        func.return %1 : tensor<3x2x5xf32>""",
    )


def test_transposed_product_with_another_user_is_not_computed_twice() -> None:
    keeps(
        "canonicalize",
        "%x : tensor<2x4xf32>, %y : tensor<4x5xf32>",
        """
        %0 = lazytpu.dot_general %x, %y lhs_contract = [1] rhs_contract = [0] precision = highest
             : (tensor<2x4xf32>, tensor<4x5xf32>) -> tensor<2x5xf32>
        %1 = lazytpu.transpose %0 [1, 0] : (tensor<2x5xf32>) -> tensor<5x2xf32>
        func.return %0, %1 : tensor<2x5xf32>, tensor<5x2xf32>""",
    )


def test_matrix_times_a_vector_as_one_column() -> None:
    rewrites(
        "canonicalize",
        "%a : tensor<2x4xf32>, %v : tensor<4xf32>",
        """
        %0 = lazytpu.reshape %v : (tensor<4xf32>) -> tensor<4x1xf32>
        %1 = lazytpu.dot_general %a, %0 lhs_contract = [1] rhs_contract = [0] precision = highest
             : (tensor<2x4xf32>, tensor<4x1xf32>) -> tensor<2x1xf32>
        %2 = lazytpu.reshape %1 : (tensor<2x1xf32>) -> tensor<2xf32>
        func.return %2 : tensor<2xf32>""",
        """
        %0 = lazytpu.dot_general %a, %v lhs_contract = [1] rhs_contract = [0] precision = highest
             : (tensor<2x4xf32>, tensor<4xf32>) -> tensor<2xf32>
        func.return %0 : tensor<2xf32>""",
    )


def test_contracted_dimension_of_size_1_stays() -> None:
    """An outer product, as torch records it, contracts the added dimension."""
    keeps(
        "canonicalize",
        "%x : tensor<3xf32>, %y : tensor<1x5xf32>",
        """
        %0 = lazytpu.reshape %x : (tensor<3xf32>) -> tensor<3x1xf32>
        %1 = lazytpu.dot_general %0, %y lhs_contract = [1] rhs_contract = [0] precision = highest
             : (tensor<3x1xf32>, tensor<1x5xf32>) -> tensor<3x5xf32>
        func.return %1 : tensor<3x5xf32>""",
    )


def test_weight_expanded_over_the_batch() -> None:
    """torch.matmul of [B, T, C] and [C, N] may expand the weight to a bmm."""
    rewrites(
        "canonicalize",
        "%x : tensor<2x8x4xf32>, %w : tensor<4x5xf32>",
        """
        %0 = lazytpu.broadcast_in_dim %w dims = [1, 2] : (tensor<4x5xf32>) -> tensor<2x4x5xf32>
        %1 = lazytpu.dot_general %x, %0 lhs_batch = [0] rhs_batch = [0] lhs_contract = [2] rhs_contract = [1]
             precision = highest : (tensor<2x8x4xf32>, tensor<2x4x5xf32>) -> tensor<2x8x5xf32>
        func.return %1 : tensor<2x8x5xf32>""",
        """
        %0 = lazytpu.dot_general %x, %w lhs_contract = [2] rhs_contract = [0] precision = highest
             : (tensor<2x8x4xf32>, tensor<4x5xf32>) -> tensor<2x8x5xf32>
        func.return %0 : tensor<2x8x5xf32>""",
    )


def test_weight_expanded_over_part_of_the_batch_stays() -> None:
    keeps(
        "canonicalize",
        "%x : tensor<2x3x8x4xf32>, %w : tensor<3x4x5xf32>",
        """
        %0 = lazytpu.broadcast_in_dim %w dims = [1, 2, 3] : (tensor<3x4x5xf32>) -> tensor<2x3x4x5xf32>
        %1 = lazytpu.dot_general %x, %0 lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [3] rhs_contract = [2]
             precision = highest : (tensor<2x3x8x4xf32>, tensor<2x3x4x5xf32>) -> tensor<2x3x8x5xf32>
        func.return %1 : tensor<2x3x8x5xf32>""",
    )


def test_contracted_pairs_are_sorted() -> None:
    rewrites(
        "canonicalize",
        "%x : tensor<2x3x4xf32>, %y : tensor<4x3xf32>",
        """
        %0 = lazytpu.dot_general %x, %y lhs_contract = [2, 1] rhs_contract = [0, 1] precision = highest
             : (tensor<2x3x4xf32>, tensor<4x3xf32>) -> tensor<2xf32>
        func.return %0 : tensor<2xf32>""",
        """
        %0 = lazytpu.dot_general %x, %y lhs_contract = [1, 2] rhs_contract = [1, 0] precision = highest
             : (tensor<2x3x4xf32>, tensor<4x3xf32>) -> tensor<2xf32>
        func.return %0 : tensor<2xf32>""",
    )
