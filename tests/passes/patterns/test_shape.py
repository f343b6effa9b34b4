"""transpose, reshape, broadcast_in_dim, slice, pad, concatenate, reverse."""

from __future__ import annotations

import pytest

from tests.passes.modules import keeps, rewrites

X = "%x : tensor<2x3xf32>"

CASES = {
    "transpose by the identity": (
        X,
        "%0 = lazytpu.transpose %x [0, 1] : tensor<2x3xf32>\nfunc.return %0 : tensor<2x3xf32>",
        "func.return %x : tensor<2x3xf32>",
    ),
    "reshape to the same shape": (
        X,
        "%0 = lazytpu.reshape %x : tensor<2x3xf32>\nfunc.return %0 : tensor<2x3xf32>",
        "func.return %x : tensor<2x3xf32>",
    ),
    "slice of all": (
        X,
        """
        %0 = lazytpu.slice %x starts = [0, 0] limits = [2, 3] strides = [1, 1] : tensor<2x3xf32>
        func.return %0 : tensor<2x3xf32>""",
        "func.return %x : tensor<2x3xf32>",
    ),
    "broadcast to the same shape": (
        X,
        "%0 = lazytpu.broadcast_in_dim %x dims = [0, 1] : tensor<2x3xf32>\nfunc.return %0 : tensor<2x3xf32>",
        "func.return %x : tensor<2x3xf32>",
    ),
    "pad by nothing": (
        X + ", %v : tensor<f32>",
        """
        %0 = lazytpu.pad %x, %v low = [0, 0] high = [0, 0] interior = [0, 0]
             : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
        func.return %0 : tensor<2x3xf32>""",
        "func.return %x : tensor<2x3xf32>",
    ),
    "concatenate of one": (
        X,
        "%0 = lazytpu.concatenate %x dim = 0 : tensor<2x3xf32>\nfunc.return %0 : tensor<2x3xf32>",
        "func.return %x : tensor<2x3xf32>",
    ),
    "reverse of dimensions of size 1": (
        "%x : tensor<1x3xf32>",
        "%0 = lazytpu.reverse %x dims = [0] : tensor<1x3xf32>\nfunc.return %0 : tensor<1x3xf32>",
        "func.return %x : tensor<1x3xf32>",
    ),
    "transposes that cancel": (
        X,
        """
        %0 = lazytpu.transpose %x [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
        %1 = lazytpu.transpose %0 [1, 0] : (tensor<3x2xf32>) -> tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
        "func.return %x : tensor<2x3xf32>",
    ),
    "transposes that compose": (
        "%x : tensor<2x3x4xf32>",
        """
        %0 = lazytpu.transpose %x [1, 2, 0] : (tensor<2x3x4xf32>) -> tensor<3x4x2xf32>
        %1 = lazytpu.transpose %0 [0, 2, 1] : (tensor<3x4x2xf32>) -> tensor<3x2x4xf32>
        func.return %1 : tensor<3x2x4xf32>""",
        """
        %0 = lazytpu.transpose %x [1, 0, 2] : (tensor<2x3x4xf32>) -> tensor<3x2x4xf32>
        func.return %0 : tensor<3x2x4xf32>""",
    ),
    "transpose of dimensions of size 1": (
        "%x : tensor<2x1x3xf32>",
        """
        %0 = lazytpu.transpose %x [1, 0, 2] : (tensor<2x1x3xf32>) -> tensor<1x2x3xf32>
        func.return %0 : tensor<1x2x3xf32>""",
        "%0 = lazytpu.reshape %x : (tensor<2x1x3xf32>) -> tensor<1x2x3xf32>\nfunc.return %0 : tensor<1x2x3xf32>",
    ),
    "reshapes that cancel": (
        X,
        """
        %0 = lazytpu.reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>
        %1 = lazytpu.reshape %0 : (tensor<6xf32>) -> tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
        "func.return %x : tensor<2x3xf32>",
    ),
    "reshapes that compose": (
        X,
        """
        %0 = lazytpu.reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>
        %1 = lazytpu.reshape %0 : (tensor<6xf32>) -> tensor<3x2xf32>
        func.return %1 : tensor<3x2xf32>""",
        "%0 = lazytpu.reshape %x : (tensor<2x3xf32>) -> tensor<3x2xf32>\nfunc.return %0 : tensor<3x2xf32>",
    ),
    "broadcasts that compose": (
        "%x : tensor<3xf32>",
        """
        %0 = lazytpu.broadcast_in_dim %x dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
        %1 = lazytpu.broadcast_in_dim %0 dims = [0, 2] : (tensor<2x3xf32>) -> tensor<2x4x3xf32>
        func.return %1 : tensor<2x4x3xf32>""",
        """
        %0 = lazytpu.broadcast_in_dim %x dims = [2] : (tensor<3xf32>) -> tensor<2x4x3xf32>
        func.return %0 : tensor<2x4x3xf32>""",
    ),
    "unsqueeze and expand": (
        "%x : tensor<3xf32>",
        """
        %0 = lazytpu.reshape %x : (tensor<3xf32>) -> tensor<1x3x1xf32>
        %1 = lazytpu.broadcast_in_dim %0 dims = [0, 1, 2] : (tensor<1x3x1xf32>) -> tensor<2x3x4xf32>
        func.return %1 : tensor<2x3x4xf32>""",
        """
        %0 = lazytpu.broadcast_in_dim %x dims = [1] : (tensor<3xf32>) -> tensor<2x3x4xf32>
        func.return %0 : tensor<2x3x4xf32>""",
    ),
    "squeeze and expand": (
        "%x : tensor<1x3xf32>",
        """
        %0 = lazytpu.reshape %x : (tensor<1x3xf32>) -> tensor<3xf32>
        %1 = lazytpu.broadcast_in_dim %0 dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
        """
        %0 = lazytpu.broadcast_in_dim %x dims = [0, 1] : (tensor<1x3xf32>) -> tensor<2x3xf32>
        func.return %0 : tensor<2x3xf32>""",
    ),
    "broadcast that repeats nothing": (
        X,
        """
        %0 = lazytpu.broadcast_in_dim %x dims = [0, 2] : (tensor<2x3xf32>) -> tensor<2x1x3xf32>
        func.return %0 : tensor<2x1x3xf32>""",
        "%0 = lazytpu.reshape %x : (tensor<2x3xf32>) -> tensor<2x1x3xf32>\nfunc.return %0 : tensor<2x1x3xf32>",
    ),
    "transpose of a broadcast": (
        "%x : tensor<3xf32>",
        """
        %0 = lazytpu.broadcast_in_dim %x dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32>
        %1 = lazytpu.transpose %0 [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
        func.return %1 : tensor<3x2xf32>""",
        """
        %0 = lazytpu.broadcast_in_dim %x dims = [0] : (tensor<3xf32>) -> tensor<3x2xf32>
        func.return %0 : tensor<3x2xf32>""",
    ),
    "slices that compose": (
        "%x : tensor<20xf32>",
        """
        %0 = lazytpu.slice %x starts = [2] limits = [20] strides = [3] : (tensor<20xf32>) -> tensor<6xf32>
        %1 = lazytpu.slice %0 starts = [1] limits = [6] strides = [2] : (tensor<6xf32>) -> tensor<3xf32>
        func.return %1 : tensor<3xf32>""",
        """
        %0 = lazytpu.slice %x starts = [5] limits = [18] strides = [6] : (tensor<20xf32>) -> tensor<3xf32>
        func.return %0 : tensor<3xf32>""",
    ),
    "slice of one part of a concatenate": (
        X + ", %y : tensor<4x3xf32>",
        """
        %0 = lazytpu.concatenate %x, %y dim = 0 : (tensor<2x3xf32>, tensor<4x3xf32>) -> tensor<6x3xf32>
        %1 = lazytpu.slice %0 starts = [3, 0] limits = [5, 3] strides = [1, 1] : (tensor<6x3xf32>) -> tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
        """
        %0 = lazytpu.slice %y starts = [1, 0] limits = [3, 3] strides = [1, 1] : (tensor<4x3xf32>) -> tensor<2x3xf32>
        func.return %0 : tensor<2x3xf32>""",
    ),
    "a whole part of a concatenate": (
        X + ", %y : tensor<2x3xf32>",
        """
        %0 = lazytpu.concatenate %x, %y dim = 1 : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x6xf32>
        %1 = lazytpu.slice %0 starts = [0, 3] limits = [2, 6] strides = [1, 1] : (tensor<2x6xf32>) -> tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
        "func.return %y : tensor<2x3xf32>",
    ),
    "slice of what was padded": (
        X + ", %v : tensor<f32>",
        """
        %0 = lazytpu.pad %x, %v low = [1, 0] high = [2, 4] interior = [0, 0]
             : (tensor<2x3xf32>, tensor<f32>) -> tensor<5x7xf32>
        %1 = lazytpu.slice %0 starts = [1, 0] limits = [3, 2] strides = [1, 1] : (tensor<5x7xf32>) -> tensor<2x2xf32>
        func.return %1 : tensor<2x2xf32>""",
        """
        %0 = lazytpu.slice %x starts = [0, 0] limits = [2, 2] strides = [1, 1] : (tensor<2x3xf32>) -> tensor<2x2xf32>
        func.return %0 : tensor<2x2xf32>""",
    ),
    "reverse twice": (
        X,
        """
        %0 = lazytpu.reverse %x dims = [0, 1] : tensor<2x3xf32>
        %1 = lazytpu.reverse %0 dims = [1, 0] : tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
        "func.return %x : tensor<2x3xf32>",
    ),
}

SPLATS = {
    "transpose": "%1 = lazytpu.transpose %0 [1, 0] : (tensor<200x300xf32>) -> tensor<300x200xf32>",
    "reshape": "%1 = lazytpu.reshape %0 : (tensor<200x300xf32>) -> tensor<300x200xf32>",
    "slice": (
        "%1 = lazytpu.slice %0 starts = [0, 1] limits = [2, 300] strides = [1, 7] "
        ": (tensor<200x300xf32>) -> tensor<2x43xf32>"
    ),
    "broadcast": "%1 = lazytpu.broadcast_in_dim %0 dims = [1, 2] : (tensor<200x300xf32>) -> tensor<2x200x300xf32>",
    "reverse": "%1 = lazytpu.reverse %0 dims = [1] : tensor<200x300xf32>",
    "concatenate": (
        "%1 = lazytpu.concatenate %0, %0 dim = 0 : (tensor<200x300xf32>, tensor<200x300xf32>) -> tensor<400x300xf32>"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_moves(case: str) -> None:
    rewrites("canonicalize", *CASES[case])


@pytest.mark.parametrize("case", SPLATS)
@pytest.mark.parametrize("number", ["-0.0", "nan", "2.5"])
def test_moves_of_equal_elements(case: str, number: str) -> None:
    kind = SPLATS[case].rsplit(" -> ", 1)[-1].rsplit(" : ", 1)[-1]
    rewrites(
        "canonicalize",
        "",
        f"%0 = lazytpu.constant {number} : tensor<200x300xf32>\n{SPLATS[case]}\nfunc.return %1 : {kind}",
        f"%0 = lazytpu.constant {number} : {kind}\nfunc.return %0 : {kind}",
    )


STAYS = {
    "a reshape between transposes": (
        X,
        """
        %0 = lazytpu.transpose %x [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
        %1 = lazytpu.reshape %0 : (tensor<3x2xf32>) -> tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
    ),
    "a slice over two parts of a concatenate": (
        X + ", %y : tensor<4x3xf32>",
        """
        %0 = lazytpu.concatenate %x, %y dim = 0 : (tensor<2x3xf32>, tensor<4x3xf32>) -> tensor<6x3xf32>
        %1 = lazytpu.slice %0 starts = [1, 0] limits = [3, 3] strides = [1, 1] : (tensor<6x3xf32>) -> tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
    ),
    "a slice that keeps padding": (
        X + ", %v : tensor<f32>",
        """
        %0 = lazytpu.pad %x, %v low = [1, 0] high = [0, 0] interior = [0, 0]
             : (tensor<2x3xf32>, tensor<f32>) -> tensor<3x3xf32>
        %1 = lazytpu.slice %0 starts = [0, 0] limits = [2, 3] strides = [1, 1] : (tensor<3x3xf32>) -> tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
    ),
    "a concatenate of different numbers": (
        "",
        """
        %0 = lazytpu.constant 0.0 : tensor<2xf32>
        %1 = lazytpu.constant -0.0 : tensor<2xf32>
        %2 = lazytpu.concatenate %0, %1 dim = 0 : (tensor<2xf32>, tensor<2xf32>) -> tensor<4xf32>
        func.return %2 : tensor<4xf32>""",
    ),
    "a broadcast of a reshape that merges dimensions": (
        X,
        """
        %0 = lazytpu.reshape %x : (tensor<2x3xf32>) -> tensor<6xf32>
        %1 = lazytpu.broadcast_in_dim %0 dims = [1] : (tensor<6xf32>) -> tensor<4x6xf32>
        func.return %1 : tensor<4x6xf32>""",
    ),
    "reverses of different dimensions": (
        X,
        """
        %0 = lazytpu.reverse %x dims = [0] : tensor<2x3xf32>
        %1 = lazytpu.reverse %0 dims = [1] : tensor<2x3xf32>
        func.return %1 : tensor<2x3xf32>""",
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_other_moves_stay(case: str) -> None:
    keeps("canonicalize", *STAYS[case])
