"""The attention that becomes a call of the kernel, and the form of the call."""

from __future__ import annotations

import pytest

from lazytpu.ir.attention import Attention
from lazytpu.ir.text import print_module
from lazytpu.passes.attention.flash_attention import LEAST, refusal, unfit
from lazytpu.passes.pipeline import run_pipeline
from tests.lowering.harness import module_of
from tests.passes.modules import parse_main, rewrites

X, S, M = "tensor<2x4x128x64xbf16>", "tensor<2x4x128xf32>", "tensor<2x1x1x128xi1>"
W = "tensor<2x4x128x64xf32>"
ARGUMENTS = f"%g : {X}, %q : {X}, %k : {X}, %v : {X}, %m : {M}"
TAKEN = "flash-attention{least=0}"


def test_both_directions_share_the_forward_kernel() -> None:
    params = '{causal = true, window = 0, precision = "default", hidden = "zeros", added = false, extra = ""}'
    rewrites(
        TAKEN,
        ARGUMENTS,
        f"""
        %0 = lazytpu.attention %q, %k, %v causal = true scale = 0.125 precision = default : {X}
        %1, %2, %3 = lazytpu.attention_backward %g, %q, %k, %v causal = true scale = 0.125 precision = default
                     : ({X}, {X}, {X}, {X}) -> ({X}, {X}, {X})
        func.return %0, %1, %2, %3 : {X}, {X}, {X}, {X}""",
        f"""
        %1 = lazytpu.constant 0.125 : {W}
        %0 = lazytpu.convert %q : ({X}) -> {W}
        %2 = lazytpu.mul %0, %1 : {W}
        %3 = lazytpu.convert %2 : ({W}) -> {X}
        %4, %5 = lazytpu.template flash_attention %3, %k, %v params = {params} : ({X}, {X}, {X}) -> ({X}, {S})
        %6, %7, %8 = lazytpu.template flash_attention_backward %g, %4, %5, %3, %k, %v params = {params}
                     : ({X}, {X}, {S}, {X}, {X}, {X}) -> ({X}, {X}, {X})
        %9 = lazytpu.convert %6 : ({X}) -> {W}
        %10 = lazytpu.mul %9, %1 : {W}
        %11 = lazytpu.convert %10 : ({W}) -> {X}
        func.return %4, %11, %7, %8 : {X}, {X}, {X}, {X}""",
    )


def test_mask_of_keys() -> None:
    params = '{causal = false, window = 0, precision = "default", hidden = "mean", added = false, extra = "bias"}'
    rewrites(
        TAKEN,
        ARGUMENTS,
        f"""
        %0 = lazytpu.attention %q, %k, %v, %m extra = "bias" precision = default hidden = mean
             : ({X}, {X}, {X}, {M}) -> {X}
        func.return %0 : {X}""",
        f"""
        %0, %1 = lazytpu.template flash_attention %q, %k, %v, %m params = {params}
                 : ({X}, {X}, {X}, {M}) -> ({X}, {S})
        func.return %0 : {X}""",
    )


def test_mask_of_positions_is_read() -> None:
    """The mask that transformers passes to torch's function: causal and padding, for each query."""
    wide = "tensor<2x1x128x128xi1>"
    body = f"""
        %rows = lazytpu.iota dim = 0 : tensor<128x128xi32>
        %columns = lazytpu.iota dim = 1 : tensor<128x128xi32>
        %seen = lazytpu.compare LE %columns, %rows : (tensor<128x128xi32>, tensor<128x128xi32>) -> tensor<128x128xi1>
        %0 = lazytpu.broadcast_in_dim %seen dims = [2, 3] : (tensor<128x128xi1>) -> {wide}
        %1 = lazytpu.broadcast_in_dim %m dims = [0, 1, 2, 3] : ({M}) -> {wide}
        %2 = lazytpu.and %0, %1 : {wide}
        %3 = lazytpu.attention %q, %k, %v, %2 extra = "bias" precision = default : ({X}, {X}, {X}, {wide}) -> {X}
        func.return %3 : {X}"""
    rewritten = parse_main(ARGUMENTS, body)
    run_pipeline(rewritten, passes=TAKEN + ",dce", verify=True)
    text = print_module(rewritten)
    assert "flash_attention" in text and "causal = true, window = 0" in text and 'extra = "bias"' in text
    assert "128x128" not in text


@pytest.mark.parametrize(
    ("mask", "bounds"),
    [
        ("%same", "causal = false, window = 0"),
        ("%both", "causal = true, window = 0"),
        ("%padded", "causal = true, window = 0"),
        ("%stored", "causal = false, window = 0"),
    ],
)
def test_masks_of_packed_sequences_are_segments(mask: str, bounds: str) -> None:
    """A comparison of the ids of documents, alone, below the diagonal, without padding as queries, or with a mask from
    memory: no comparison of the kernel's operands is as large as the scores."""
    wide, square = "tensor<2x1x128x128xi1>", "tensor<2x128x128xi32>"
    body = f"""
        %of_query = lazytpu.broadcast_in_dim %ids dims = [0, 1] : (tensor<2x128xi32>) -> {square}
        %of_key = lazytpu.broadcast_in_dim %ids dims = [0, 2] : (tensor<2x128xi32>) -> {square}
        %equal = lazytpu.compare NE %of_query, %of_key : ({square}, {square}) -> tensor<2x128x128xi1>
        %differ = lazytpu.reshape %equal : (tensor<2x128x128xi1>) -> {wide}
        %same = lazytpu.not %differ : {wide}
        %rows = lazytpu.iota dim = 2 : tensor<2x1x128x128xi32>
        %columns = lazytpu.iota dim = 3 : tensor<2x1x128x128xi32>
        %seen = lazytpu.compare LE %columns, %rows
                : (tensor<2x1x128x128xi32>, tensor<2x1x128x128xi32>) -> {wide}
        %both = lazytpu.and %seen, %same : {wide}
        %by_query = lazytpu.broadcast_in_dim %m dims = [0, 1, 3, 2] : ({M}) -> {wide}
        %padded = lazytpu.and %both, %by_query : {wide}
        %stored = lazytpu.and %same, %memory : {wide}
        %3 = lazytpu.attention %q, %k, %v, {mask} extra = "bias" precision = default : ({X}, {X}, {X}, {wide}) -> {X}
        func.return %3 : {X}"""
    rewritten = parse_main(f"{ARGUMENTS}, %ids : tensor<2x128xi32>, %memory : {wide}", body)
    run_pipeline(rewritten, passes=TAKEN + ",dce", verify=True)
    text = print_module(rewritten)
    assert "template segment_ids" in text and bounds in text
    assert f'extra = "{"bias," if mask == "%stored" else ""}segments"' in text
    assert "128x128xi32" not in text
    assert text.count("lazytpu.select") == (1 if mask == "%padded" else 0)


def test_attention_with_few_scores_is_decomposed() -> None:
    """Decomposed attention is simplified too: the scale of 1 is gone."""
    body = f"""
        %0 = lazytpu.attention %q, %k, %v causal = true precision = default : {X}
        func.return %0 : {X}"""
    rewritten = parse_main(ARGUMENTS, body)
    run_pipeline(rewritten, passes="flash-attention", verify=True)
    text = print_module(rewritten)
    assert "template" not in text and "lazytpu.attention" not in text
    assert text.count("dot_general") == 2 and "lazytpu.mul" not in text


LONG = (1, 2, 4096, 64)


@pytest.mark.parametrize(
    ("dtype", "shape", "bias", "why"),
    [
        ("f32", LONG, None, None),
        ("bf16", (1, 2, 4001, 64), ("i1", (4001,)), None),
        ("bf16", LONG, ("i1", (1, 1, 4096, 4096)), None),
        ("bf16", LONG, ("i1", (1, 1, 4096, 1)), "tensor<1x1x4096x1xi1>, must be a mask shared by all heads"),
        ("bf16", LONG, ("i1", (1, 2, 4096, 4096)), "tensor<1x2x4096x4096xi1>, must be a mask shared by all heads"),
        ("bf16", LONG, ("bf16", (1, 1, 1, 4096)), "a bias for each query"),
        ("f16", LONG, None, "the kernel supports bf16 and f32, not f16"),
        ("bf16", (1, 2, 4096, 512), None, "heads are 512 and 512 wide; the kernel takes multiples of 8 up to 256"),
        ("bf16", (1, 2, 4096, 60), None, "heads are 60 and 60 wide; the kernel takes multiples of 8"),
    ],
)
def test_limits_of_the_kernel(
    dtype: str, shape: tuple[int, ...], bias: tuple[str, tuple[int, ...]] | None, why: str | None
) -> None:
    reasons: list[str | None] = []
    types = [(dtype, shape)] * 3 + ([bias] if bias else [])

    def build(b, q, *rest):
        of = Attention(q, *rest)
        assert refusal(of, LEAST) is None
        reasons.append(unfit(of))
        return q

    module_of(build, *types)
    assert reasons == [None] if why is None else why in str(reasons[0])


@pytest.mark.parametrize(
    ("dtype", "shape", "why"),
    [
        ("f64", LONG, "attention of f64 is computed with the scores in memory"),
        ("bf16", (1, 1, 512, 64), "the scores, 1,048,576 bytes, are small enough to be stored"),
    ],
)
def test_unsupported_attention_is_computed_by_blocks(dtype: str, shape: tuple[int, ...], why: str) -> None:
    def build(b, q):
        assert refusal(Attention(q, q, q), LEAST) == why
        return q

    module_of(build, (dtype, shape))


def test_dropout_is_computed_by_blocks() -> None:
    """Both directions draw from the same numbers; the gradient of a bias has its shape again."""
    bias = "tensor<128x128xf32>"
    types = f"{X}, {X}, {X}, {bias}, tensor<f32>, tensor<f32>, tensor<ui64>, tensor<ui64>"
    op = '%q, %k, %v, %b, %p, %by, %seed, %at extra = "bias,dropout" precision = default'
    body = f"""
        %0 = lazytpu.attention {op} : ({types}) -> {X}
        %1, %2, %3, %4 = lazytpu.attention_backward %g, {op} of_bias = true : ({X}, {types}) -> ({X}, {X}, {X}, {bias})
        func.return %0, %1, %2, %3, %4 : {X}, {X}, {X}, {X}, {bias}"""
    arguments = f"{ARGUMENTS}, %b : {bias}, %p : tensor<f32>, %by : tensor<f32>"
    arguments += ", %seed : tensor<ui64>, %at : tensor<ui64>"
    rewritten = parse_main(arguments, body)
    run_pipeline(rewritten, passes=TAKEN, verify=True)
    lines = print_module(rewritten).splitlines()
    (forward,), (backward,) = (
        [line for line in lines if f"lazytpu.template {name} " in line]
        for name in ("attention_by_blocks", "attention_by_blocks_backward")
    )
    operands = forward.split("attention_by_blocks ")[1].split(" params")[0]
    assert 'extra = "bias,dropout"' in forward and f"_backward %g, {operands} params" in backward
    assert "of_bias = true" in backward and backward.endswith("tensor<1x1x128x128xf32>)")
