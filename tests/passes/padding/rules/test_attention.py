"""Attention over sized lengths and batches, by its decomposition."""

from __future__ import annotations

import numpy as np
import pytest

from lazytpu.ir.attention import Attention
from lazytpu.ir.contractions import DotGeneralOp
from lazytpu.passes.padding.pad_sizes import pad_sizes
from lazytpu.passes.padding.walk import Refusal
from lazytpu.passes.pipeline import run_pipeline
from tests.passes.padding.sized import annotated, compiled, same_at_every_size

ONE = {"n": (1, 5)}
SOME = [{"n": 1}, {"n": 4}]


def decomposed(module):
    run_pipeline(module, passes="decompose-attention", verify=False)
    return compiled(module)


CASES = {
    "lengths": (["f32[2,4,n,8]", "f32[2,2,n,8]", "f32[2,2,n,3]"], {}),
    "causal": (["f32[2,4,n,8]", "f32[2,2,n,8]", "f32[2,2,n,3]"], {"causal": True}),
    "decode": (["f32[2,4,1,8]", "f32[2,2,n+1,8]", "f32[2,2,n+1,3]"], {}),
    "queries": (["f32[2,4,n,8]", "f32[2,2,6,8]", "f32[2,2,6,3]"], {"causal": True}),
    "batch": (["f32[n,4,3,8]", "f32[n,2,6,8]", "f32[n,2,6,3]"], {}),
    "nan": (["f32[2,4,n,8]", "f32[2,2,n,8]", "f32[2,2,n,3]"], {"hidden": "nan", "window": 2, "causal": True}),
}


@pytest.mark.parametrize("bias", [None, "i1[n,n]", "i1[2,1,1,n]", "i1[1,1,n,1]"])
def test_attention_with_a_mask(bias: str | None) -> None:
    def build(b, q, k, v, *bias, n):
        return b.attention(Attention(q, k, v, *bias, scale=0.5))

    arguments = ["f32[2,4,n,8]", "f32[2,2,n,8]", "f32[2,2,n,3]", *([bias] if bias else [])]
    same_at_every_size(build, arguments, ONE, tolerance=1e-5, sizes=SOME, run=decomposed)


@pytest.mark.parametrize("name", CASES)
def test_attention_and_its_gradients(name: str) -> None:
    (q, k, v), how = CASES[name]

    def build(b, g, q, k, v, n):
        of = Attention(q, k, v, scale=0.5, **how)
        return [b.attention(of), *b.attention_backward(g, of)]

    gradient = q.replace(",8]", ",3]")
    same_at_every_size(build, [gradient, q, k, v], ONE, tolerance=1e-5, sizes=SOME, run=decomposed)


@pytest.mark.parametrize("bias", [None, "i1[n,n]", "f32[2,1,1,n]"])
@pytest.mark.parametrize("causal", [False, True])
def test_scores_are_computed_once(bias: str | None, causal: bool) -> None:
    """The backward op uses the scores of the forward op, as in a program for one size."""

    def build(b, g, q, k, v, *bias, n):
        of = Attention(q, k, v, *bias, causal=causal)
        return [b.attention(of), *b.attention_backward(g, of)]

    module = annotated(build, [*["f32[2,2,n,8]"] * 4, *([bias] if bias else [])], ONE)
    pad_sizes(module)
    run_pipeline(module, passes="decompose-attention,cse", verify=False)
    products = [op for op in module.walk() if isinstance(op, DotGeneralOp)]
    assert len(products) == 6, "scores, output, and one for each gradient and that of the probabilities"


def test_gradients_with_a_bias_that_is_padded_along_queries() -> None:
    def build(b, g, q, k, v, bias, n):
        return b.attention_backward(g, Attention(q, k, v, bias, scale=0.5))

    arguments = ["f32[2,4,n,3]", "f32[2,4,n,8]", "f32[2,2,6,8]", "f32[2,2,6,3]"]
    for bias in ("f32[n,6]", "i1[n,6]"):
        same_at_every_size(build, [*arguments, bias], ONE, tolerance=1e-5, sizes=SOME, run=decomposed)


@pytest.mark.parametrize("bias", ["f32[n,n]", "f32[2,1,1,n]", "f32[1,4,n,1]"])
def test_attention_with_an_added_bias(bias: str) -> None:
    """A bias as used for masks, with hidden keys; each query sees at least one key."""

    def build(b, g, q, k, v, bias, n):
        of = Attention(q, k, v, bias, scale=0.5)
        return [b.attention(of), *b.attention_backward(g, of)]

    def hiding(i, array, rng):
        if i == 4 and array.shape[-1] > 1:
            array = np.where(rng.random(array.shape) < 0.4, -np.inf, array)
            array[..., 0] = 0
        return array

    arguments = ["f32[2,4,n,3]", "f32[2,4,n,8]", "f32[2,2,n,8]", "f32[2,2,n,3]", bias]
    same_at_every_size(build, arguments, ONE, tolerance=1e-5, sizes=SOME, values=hiding, run=decomposed)


def test_attention_with_a_run_time_offset() -> None:
    """The offset would let a query see keys in the padding, which must stay hidden."""

    def build(b, q, k, v, offset, n):
        of = Attention(q, k, v, offset=offset, causal=True, scale=0.5)
        return b.attention(of)

    arguments = ["f32[2,4,n,8]", "f32[2,2,n,8]", "f32[2,2,n,3]", "i32[]"]
    same_at_every_size(build, arguments, ONE, tolerance=1e-5, sizes=SOME, run=decomposed)


@pytest.mark.parametrize(
    ("arguments", "how", "reason"),
    [
        (["f32[2,n,3,8]"] * 3, {}, "the heads or the width"),
        (["f32[2,2,n,8]"] * 3, {"hidden": "mean"}, "take the mean of all keys"),
    ],
)
def test_unsupported_attention_is_refused(arguments: list[str], how: dict, reason: str) -> None:
    module = annotated(lambda b, q, k, v, n: b.attention(Attention(q, k, v, **how)), arguments, ONE)
    with pytest.raises(Refusal, match=reason):
        pad_sizes(module)


def test_unsupported_operands_are_refused() -> None:
    def biased(b, q, k, v, bias, n):
        return b.attention(Attention(q, k, v, bias))

    def dropped(b, q, k, v, keep, seed, n):
        return b.attention(Attention(q, k, v, dropout=(keep, keep, seed, seed)))

    def nowhere(b, q, k, v, n):
        return b.attention_backward(q, Attention(q, k, v, hidden="nan"))

    lengths = ["f32[2,2,n,8]"] * 3
    with pytest.raises(Refusal, match="may see no key"):
        pad_sizes(annotated(nowhere, lengths, ONE))
    cases = (biased, ["f32[n,n]"], "a bias is added", {"n": (0, 5)}), (dropped, ["f32[]", "ui64[]"], "dropout", ONE)
    for build, operands, reason, symbols in cases:
        with pytest.raises(Refusal, match=f"{reason}.*run decompose-attention"):
            pad_sizes(annotated(build, [*lengths, *operands], symbols))
