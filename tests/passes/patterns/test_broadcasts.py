"""Computing before broadcasting."""

from __future__ import annotations

import pytest

from tests.passes.modules import keeps, rewrites

NUMBER = "%s : tensor<f32>, %t : tensor<f32>, %x : tensor<4x3xf32>"
ROW = "%v : tensor<3xf32>, %w : tensor<3xf32>"


def repeat(name: str, source: str, dims: str = "") -> str:
    kind = "tensor<3xf32>" if dims else "tensor<f32>"
    return f"{name} = lazytpu.broadcast_in_dim {source} dims = [{dims}] : ({kind}) -> tensor<4x3xf32>\n"


@pytest.mark.parametrize("op", ["exp", "neg", "sqrt"])
def test_one_operand(op: str) -> None:
    rewrites(
        "canonicalize",
        ROW,
        repeat("%0", "%v", "1") + f"%1 = lazytpu.{op} %0 : tensor<4x3xf32>\nfunc.return %1 : tensor<4x3xf32>",
        f"%0 = lazytpu.{op} %v : tensor<3xf32>\n" + repeat("%1", "%0", "1") + "func.return %1 : tensor<4x3xf32>",
    )


def test_two_equally_broadcast_operands() -> None:
    rewrites(
        "canonicalize",
        ROW,
        repeat("%0", "%v", "1")
        + repeat("%1", "%w", "1")
        + "%2 = lazytpu.sub %0, %1 : tensor<4x3xf32>\nfunc.return %2 : tensor<4x3xf32>",
        "%0 = lazytpu.sub %v, %w : tensor<3xf32>\n" + repeat("%1", "%0", "1") + "func.return %1 : tensor<4x3xf32>",
    )


def test_constants_match_any_broadcast() -> None:
    """1 - weight of a lerp."""
    rewrites(
        "canonicalize",
        NUMBER,
        "%0 = lazytpu.constant 1.0 : tensor<4x3xf32>\n"
        + repeat("%1", "%s")
        + "%2 = lazytpu.sub %0, %1 : tensor<4x3xf32>\nfunc.return %2 : tensor<4x3xf32>",
        "%0 = lazytpu.constant 1.0 : tensor<f32>\n%1 = lazytpu.sub %0, %s : tensor<f32>\n"
        + repeat("%2", "%1")
        + "func.return %2 : tensor<4x3xf32>",
    )


def test_lerp_by_a_number_chooses_once() -> None:
    rewrites(
        "canonicalize",
        NUMBER + ", %y : tensor<4x3xf32>",
        repeat("%0", "%s")
        + """
        %1 = lazytpu.abs %0 : tensor<4x3xf32>
        %2 = lazytpu.constant 0.5 : tensor<4x3xf32>
        %3 = lazytpu.compare LT %1, %2 : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xi1>
        %4 = lazytpu.select %3, %x, %y : (tensor<4x3xi1>, tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
        func.return %4 : tensor<4x3xf32>""",
        """
        %0 = lazytpu.abs %s : tensor<f32>
        %1 = lazytpu.constant 0.5 : tensor<f32>
        %2 = lazytpu.compare LT %0, %1 : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %3 = lazytpu.select %2, %x, %y : (tensor<i1>, tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
        func.return %3 : tensor<4x3xf32>""",
    )


def test_bounds_of_clamp() -> None:
    rewrites(
        "canonicalize",
        NUMBER,
        repeat("%0", "%s")
        + repeat("%1", "%t")
        + "%2 = lazytpu.clamp %0, %x, %1 : tensor<4x3xf32>\nfunc.return %2 : tensor<4x3xf32>",
        """
        %0 = lazytpu.clamp %s, %x, %t : (tensor<f32>, tensor<4x3xf32>, tensor<f32>) -> tensor<4x3xf32>
        func.return %0 : tensor<4x3xf32>""",
    )


@pytest.mark.parametrize(
    ("move", "kind"),
    [
        ("reshape %0 : (tensor<4x3xf32>) -> tensor<12xf32>", "tensor<12xf32>"),
        ("transpose %0 [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>", "tensor<3x4xf32>"),
        (
            "slice %0 starts = [0, 1] limits = [2, 3] strides = [1, 1] : (tensor<4x3xf32>) -> tensor<2x2xf32>",
            "tensor<2x2xf32>",
        ),
        ("reverse %0 dims = [0] : tensor<4x3xf32>", "tensor<4x3xf32>"),
    ],
)
def test_moves_of_a_broadcast_number(move: str, kind: str) -> None:
    rewrites(
        "canonicalize",
        NUMBER,
        repeat("%0", "%s") + f"%1 = lazytpu.{move}\nfunc.return %1 : {kind}",
        f"%0 = lazytpu.broadcast_in_dim %s dims = [] : (tensor<f32>) -> {kind}\nfunc.return %0 : {kind}",
    )


def test_differently_broadcast_operands_stay() -> None:
    keeps(
        "canonicalize",
        "%s : tensor<f32>, %v : tensor<3xf32>",
        repeat("%0", "%v", "1")
        + repeat("%1", "%s")
        + "%2 = lazytpu.mul %0, %1 : tensor<4x3xf32>\nfunc.return %2 : tensor<4x3xf32>",
    )


def test_operand_of_full_size_stays() -> None:
    keeps(
        "canonicalize",
        NUMBER,
        repeat("%0", "%s") + "%1 = lazytpu.mul %0, %x : tensor<4x3xf32>\nfunc.return %1 : tensor<4x3xf32>",
    )
