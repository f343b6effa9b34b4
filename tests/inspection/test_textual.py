"""Counting in MLIR text."""

from __future__ import annotations

import pytest

from lazytpu.inspection.textual import kind_of, skeleton, stats, tensor_bytes, without_locations
from tests.inspection.samples import BEFORE, STABLEHLO


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("tensor<f32>", 4),
        ("tensor<2x3xbf16>", 12),
        ("tensor<5xi1>", 5),
        ("tensor<5xui8>, tensor<2xi64>", 21),
        ("tensor<4xcomplex<f32>>", 32),
        ("tensor<4xcomplex<f64>>", 64),
        ("tensor<4xf8E4M3FN>", 4),
        ("tensor<0x4xf64>", 0),
        ('tensor<8x128xf32, #sdy.sharding<"x">>', 4096),
        ("no tensor", 0),
    ],
)
def test_bytes_of_types(text: str, size: int) -> None:
    assert tensor_bytes(text) == size


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("    %0 = lazytpu.exp %x : tensor<f32>", "lazytpu.exp"),
        ('    %0:2 = "stablehlo.sort"(%x, %y) <{dimension = 0 : i64}> ({', "stablehlo.sort"),
        (
            "    %v, %i = lazytpu.argreduce max %x dim = 1 : (tensor<4xf32>) -> (tensor<f32>, tensor<i64>)",
            "lazytpu.argreduce",
        ),
        ("    func.return %0 : tensor<f32>", "func.return"),
        ("    return %0 : tensor<f32>", "return"),
        ("  }", None),
        ("", None),
        ("// a comment", None),
    ],
)
def test_kind_of_op(line: str, kind: str | None) -> None:
    assert kind_of(line) == kind


def test_locations_are_left_out() -> None:
    assert not any("loc" in line for line in without_locations(BEFORE))
    assert not any("loc" in line for line in without_locations(STABLEHLO))
    assert len(without_locations(STABLEHLO)) == 7


def test_skeleton_has_no_names() -> None:
    assert skeleton("%12 = lazytpu.add %layers.0.w, %3#1 : tensor<f32>") == "% = lazytpu.add %, % : tensor<f32>"


def test_stats_of_the_dialect() -> None:
    sizes = stats(BEFORE.replace("lazytpu.donate", "lazytpu.alias = 1 : i64"))
    assert (sizes.arguments, sizes.aliased, sizes.results) == ([256, 128], [256], [512, 256])
    assert sizes.ops == {
        "lazytpu.transpose": [256],
        "lazytpu.dot_general": [512],
        "lazytpu.constant": [256],
        "lazytpu.sub": [256],
    }


def test_stats_of_stablehlo() -> None:
    sizes = stats(STABLEHLO)
    assert (sizes.arguments, sizes.aliased, sizes.results) == ([256, 64], [256], [8, 512])
    assert sizes.ops == {"stablehlo.custom": [8], "stablehlo.complex": [512]}


def test_text_without_a_main_function() -> None:
    with pytest.raises(ValueError, match="function @main"):
        stats("nothing")
