"""Modules as flat lists of ops."""

from __future__ import annotations

import pytest

from lazytpu.inspection.step.reading import read
from tests.inspection.samples import STABLEHLO
from tests.inspection.step.samples import CLUSTERS, STEP


def test_ops_with_lines_operands_and_users() -> None:
    step = read(STEP)
    assert [op.kind for op in step.ops] == ["dot_general", "constant", "max", "reduce", "exp", "dot_general", "sub"]
    assert [op.operands for op in step.ops] == [(~0, ~1), (), (0, 1), (2,), (2,), (~0, 4), (~1, 5)]
    assert step.ops[2].users == [3, 4] and step.results == (6, 3) and step.returned == {3, 6}
    assert [op.place for op in step.ops[2:5]] == ["model.py:5", "train.py:9", "model.py:5 (backward)"]
    assert step.ops[6].text == "%6 = lazytpu.sub %w, %5 : tensor<256x128xf32>"
    weight = step.arguments[1]
    assert (weight.name, weight.bytes, weight.update) == ("layer.weight", 4 * 256 * 128, 0)


def test_work_of_ops() -> None:
    step = read(STEP)
    assert step.ops[0].flops == step.ops[5].flops == 2 * 4096 * 256 * 128
    assert [op.passes for op in step.ops] == [6, 0, 0, 0, 0, 1, 0]
    assert [op.flops for op in step.ops[1:4]] == [0, 4096 * 128, 4096 * 128]
    assert step.ops[0].bytes == 4 * 4096 * 128 and step.ops[3].bytes == 4


def test_called_functions_are_taken_in_at_each_call() -> None:
    step = read(CLUSTERS)
    assert [op.kind for op in step.ops] == ["exp", "sin", "exp", "sin", "neg"]
    assert [op.operands for op in step.ops] == [(~0,), (0,), (1,), (2,), (3,)]
    assert step.clusters == ["cluster_0 #0", "cluster_0 #1"] and step.ops[4].cluster == ""
    assert step.ops[2].place == "model.py:2" and "lazytpu.exp %y" in step.ops[2].text


def test_an_unreadable_module_raises_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"it is StableHLO\); LAZYTPU_DUMP writes these as NNN-name\.lazytpu\.mlir"):
        read(STABLEHLO)
    with pytest.raises(ValueError, match="has no function @main; it has other"):
        read(STEP.replace("@main", "@other"))


def test_attention() -> None:
    text = """
func.func @main(%q: tensor<2x4x16x8xf32>, %k: tensor<2x4x32x8xf32>) -> tensor<2x4x16x8xf32> {
  %0 = lazytpu.attention %q, %k, %k extra = "" causal = true scale = 1.0 precision = high : (tensor<2x4x16x8xf32>, tensor<2x4x32x8xf32>, tensor<2x4x32x8xf32>) -> tensor<2x4x16x8xf32>
  func.return %0 : tensor<2x4x16x8xf32>
}
"""  # noqa: E501
    (op,) = read(text).ops
    # A block of the kernel has at least 128 queries and keys, and the causal mask hides no whole block.
    assert (op.flops, op.passes) == (2 * (8 + 8) * 2 * 4 * 128 * 128, 3)
    assert op.estimate is not None and op.estimate.transcendentals == 2 * 4 * 128 * 128


@pytest.mark.parametrize(("backward", "products"), [("", 2), ("_backward", 7)])
def test_kernels_of_attention_are_known_by_their_template(backward: str, products: int) -> None:
    """Half of the blocks, plus the ones on the diagonal: 10 of 16."""
    kind, sums = "tensor<1x4x2048x64xbf16>", "tensor<1x4x2048xf32>"
    named = "%0, %1, %2" if backward else "%0, %1"
    values, kinds, results = "%q, %q, %q", f"{kind}, {kind}, {kind}", f"{kind}, {sums}"
    if backward:
        values, kinds, results = f"%q, %q, %s, {values}", f"{kind}, {kind}, {sums}, {kinds}", f"{kind}, {kind}, {kind}"
    params = 'causal = true, window = 0, precision = "highest", hidden = "zeros", added = false, extra = ""'
    text = f"""
func.func @main(%q: {kind}, %s: {sums}) -> {kind} {{
  {named} = lazytpu.template flash_attention{backward} {values} params = {{{params}}} : ({kinds}) -> ({results})
  func.return %0 : {kind}
}}
"""
    (op,) = read(text).ops
    assert (op.flops, op.passes) == (products * 2 * 64 * 4 * 10 * 512 * 512, 1)
