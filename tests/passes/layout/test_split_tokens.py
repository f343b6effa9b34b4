"""Products of merged rows, with the rows split."""

from __future__ import annotations

from tests.passes.modules import keeps, rewrites

X, Y, W, G = "tensor<4x16x6xf32>", "tensor<64x6xf32>", "tensor<10x6xf32>", "tensor<64x10xf32>"
ARGUMENTS = f"%x : {X}, %w : {W}, %b : tensor<10xf32>, %g : tensor<4x16x10xf32>, %u : tensor<4x3x6xf32>"


def test_linear_layer_is_split() -> None:
    """Product, bias, activation, half of the features and their sum: the rows stay split."""
    rewrites(
        "split-tokens,dce",
        ARGUMENTS,
        f"""
        %0 = lazytpu.reshape %x : ({X}) -> {Y}
        %1 = lazytpu.dot_general %0, %w lhs_contract = [1] rhs_contract = [1] precision = default : ({Y}, {W}) -> {G}
        %2 = lazytpu.broadcast_in_dim %b dims = [1] : (tensor<10xf32>) -> {G}
        %3 = lazytpu.add %1, %2 : {G}
        %4 = lazytpu.slice %3 starts = [0, 0] limits = [64, 5] strides = [1, 1] : ({G}) -> tensor<64x5xf32>
        %5 = lazytpu.reshape %4 : (tensor<64x5xf32>) -> tensor<4x16x5xf32>
        %6 = lazytpu.reduce add %3 dims = [0] : ({G}) -> tensor<10xf32>
        func.return %5, %6 : tensor<4x16x5xf32>, tensor<10xf32>""",
        f"""
        %1 = lazytpu.dot_general %x, %w lhs_contract = [2] rhs_contract = [1] precision = default
             : ({X}, {W}) -> tensor<4x16x10xf32>
        %2 = lazytpu.broadcast_in_dim %b dims = [2] : (tensor<10xf32>) -> tensor<4x16x10xf32>
        %3 = lazytpu.add %1, %2 : tensor<4x16x10xf32>
        %4 = lazytpu.slice %3 starts = [0, 0, 0] limits = [4, 16, 5] strides = [1, 1, 1]
             : (tensor<4x16x10xf32>) -> tensor<4x16x5xf32>
        %5 = lazytpu.reduce add %3 dims = [0, 1] : (tensor<4x16x10xf32>) -> tensor<10xf32>
        func.return %4, %5 : tensor<4x16x5xf32>, tensor<10xf32>""",
    )


def test_weight_gradient_is_split() -> None:
    rewrites(
        "split-tokens,dce",
        ARGUMENTS,
        f"""
        %0 = lazytpu.reshape %x : ({X}) -> {Y}
        %1 = lazytpu.reshape %g : (tensor<4x16x10xf32>) -> {G}
        %2 = lazytpu.dot_general %1, %0 lhs_contract = [0] rhs_contract = [0] precision = default : ({G}, {Y}) -> {W}
        func.return %2 : {W}""",
        f"""
        %2 = lazytpu.dot_general %g, %x lhs_contract = [0, 1] rhs_contract = [0, 1] precision = default
             : (tensor<4x16x10xf32>, {X}) -> {W}
        func.return %2 : {W}""",
    )


def test_heads_are_split_from_features() -> None:
    """[4, 16, 6] -> [64, 2, 3]: half of each head's features, with the rows split and the heads unchanged."""
    rewrites(
        "split-tokens,dce",
        ARGUMENTS,
        f"""
        %0 = lazytpu.reshape %x : ({X}) -> tensor<64x2x3xf32>
        %1 = lazytpu.slice %0 starts = [0, 0, 1] limits = [64, 2, 3] strides = [1, 1, 1]
             : (tensor<64x2x3xf32>) -> tensor<64x2x2xf32>
        %2 = lazytpu.reshape %1 : (tensor<64x2x2xf32>) -> tensor<4x16x2x2xf32>
        func.return %2 : tensor<4x16x2x2xf32>""",
        f"""
        %0 = lazytpu.reshape %x : ({X}) -> tensor<4x16x2x3xf32>
        %1 = lazytpu.slice %0 starts = [0, 0, 0, 1] limits = [4, 16, 2, 3] strides = [1, 1, 1, 1]
             : (tensor<4x16x2x3xf32>) -> tensor<4x16x2x2xf32>
        func.return %1 : tensor<4x16x2x2xf32>""",
    )


def test_concatenated_features_are_split() -> None:
    rewrites(
        "split-tokens,dce",
        ARGUMENTS,
        f"""
        %0 = lazytpu.reshape %x : ({X}) -> {Y}
        %1 = lazytpu.reshape %g : (tensor<4x16x10xf32>) -> {G}
        %2 = lazytpu.concatenate %0, %1 dim = 1 : ({Y}, {G}) -> tensor<64x16xf32>
        %3 = lazytpu.reshape %2 : (tensor<64x16xf32>) -> tensor<4x16x16xf32>
        func.return %3 : tensor<4x16x16xf32>""",
        f"""
        %2 = lazytpu.concatenate %x, %g dim = 2 : ({X}, tensor<4x16x10xf32>) -> tensor<4x16x16xf32>
        func.return %2 : tensor<4x16x16xf32>""",
    )


def test_rows_that_fill_no_tile_stay_merged() -> None:
    keeps(
        "split-tokens",
        ARGUMENTS,
        f"""
        %0 = lazytpu.reshape %u : (tensor<4x3x6xf32>) -> tensor<12x6xf32>
        %1 = lazytpu.dot_general %0, %w lhs_contract = [1] rhs_contract = [1] precision = default
             : (tensor<12x6xf32>, {W}) -> tensor<12x10xf32>
        func.return %1 : tensor<12x10xf32>""",
    )


def test_dimensions_contracted_with_a_matrix_stay_merged() -> None:
    """Nor is a value that an elementwise op combines with another shape."""
    keeps(
        "split-tokens",
        f"%x : {X}, %g : {G}, %y : {Y}",
        f"""
        %0 = lazytpu.reshape %x : ({X}) -> {Y}
        %1 = lazytpu.dot_general %g, %0 lhs_contract = [0] rhs_contract = [0] precision = default : ({G}, {Y}) -> {W}
        %2 = lazytpu.mul %0, %y : {Y}
        func.return %1, %2 : {W}, {Y}""",
    )
