"""Decomposed attention: its ops, the ops that both directions share, and values of options that torch's op does not
have."""

from __future__ import annotations

import numpy as np
import pytest

from lazytpu.ir.attention import Attention
from lazytpu.ir.text import print_module
from lazytpu.lowering import LoweringError, emit
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.lowering.harness import module_of
from tests.passes.modules import parse_main, rewrites

Q, K, V = "tensor<1x2x3x4xf32>", "tensor<1x1x5x4xf32>", "tensor<1x1x5x6xf32>"
ARGUMENTS = f"%q : {Q}, %k : {K}, %v : {V}"
OUT = "tensor<1x2x3x6xf32>"


def test_forward() -> None:
    """Two query heads share a key head: their rows are in one product, and stay two dimensions."""
    grouped, scores, rows = "tensor<1x1x2x3x5xf32>", "tensor<1x2x3x5xf32>", "tensor<1x2x3xf32>"
    rewrites(
        "decompose-attention,dce",
        ARGUMENTS,
        f"""
        %0 = lazytpu.attention %q, %k, %v causal = true scale = 0.5 precision = highest : ({Q}, {K}, {V}) -> {OUT}
        func.return %0 : {OUT}""",
        f"""
        %0 = lazytpu.reshape %q : ({Q}) -> tensor<1x1x2x3x4xf32>
        %1 = lazytpu.dot_general %0, %k lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [4] rhs_contract = [3]
             precision = highest : (tensor<1x1x2x3x4xf32>, {K}) -> {grouped}
        %2 = lazytpu.reshape %1 : ({grouped}) -> {scores}
        %3 = lazytpu.constant 0.5 : {scores}
        %4 = lazytpu.mul %2, %3 : {scores}
        %5 = lazytpu.constant -inf : {scores}
        %6 = lazytpu.iota dim = 0 : tensor<3x5xi32>
        %7 = lazytpu.iota dim = 1 : tensor<3x5xi32>
        %8 = lazytpu.compare GE %6, %7 : (tensor<3x5xi32>, tensor<3x5xi32>) -> tensor<3x5xi1>
        %9 = lazytpu.broadcast_in_dim %8 dims = [2, 3] : (tensor<3x5xi1>) -> tensor<1x2x3x5xi1>
        %10 = lazytpu.select %9, %4, %5 : (tensor<1x2x3x5xi1>, {scores}, {scores}) -> {scores}
        %11 = lazytpu.reduce peak %10 dims = [3] : ({scores}) -> {rows}
        %12 = lazytpu.broadcast_in_dim %11 dims = [0, 1, 2] : ({rows}) -> {scores}
        %13 = lazytpu.sub %10, %12 : {scores}
        %14 = lazytpu.exp %13 : {scores}
        %15 = lazytpu.reduce add %14 dims = [3] : ({scores}) -> {rows}
        %16 = lazytpu.broadcast_in_dim %15 dims = [0, 1, 2] : ({rows}) -> {scores}
        %17 = lazytpu.div %14, %16 : {scores}
        %18 = lazytpu.reshape %17 : ({scores}) -> {grouped}
        %19 = lazytpu.dot_general %18, %v lhs_batch = [0, 1] rhs_batch = [0, 1] lhs_contract = [4] rhs_contract = [2]
             precision = highest : ({grouped}, {V}) -> tensor<1x1x2x3x6xf32>
        %20 = lazytpu.reshape %19 : (tensor<1x1x2x3x6xf32>) -> {OUT}
        func.return %20 : {OUT}""",
    )


def test_both_directions_share_the_probabilities() -> None:
    body = f"""
        %0 = lazytpu.attention %q, %k, %v precision = highest : ({Q}, {K}, {V}) -> {OUT}
        %1, %2, %3 = lazytpu.attention_backward %0, %q, %k, %v precision = highest
                     : ({OUT}, {Q}, {K}, {V}) -> ({Q}, {K}, {V})
        func.return %1, %2, %3 : {Q}, {K}, {V}"""
    rewritten = parse_main(ARGUMENTS, body)
    run_pipeline(rewritten, passes="decompose-attention,cse", verify=True)
    text = print_module(rewritten)
    assert text.count("lazytpu.exp ") == 1
    assert text.count("dot_general") == 6  # two forward, four backward
    assert "lazytpu.attention" not in text


def test_recomputed_attention_shares_nothing() -> None:
    op = f"lazytpu.attention %q, %k, %v precision = highest {{mark}} : ({Q}, {K}, {V}) -> {OUT}"
    first, again = op.format(mark=""), op.format(mark="{lazytpu.recompute = 1 : i64}")
    body = f"%0 = {first}\n%1 = {again}\nfunc.return %0, %1 : {OUT}, {OUT}"
    rewritten = parse_main(ARGUMENTS, body)
    run_pipeline(rewritten, passes="decompose-attention,cse", verify=True)
    assert print_module(rewritten).count("lazytpu.exp ") == 2


def test_window() -> None:
    """Each query sees itself and the key before; the last two see no key at all, and give zeros."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, n, 4)).astype(np.float32) for n in (6, 3, 3))
    types = [("f32", x.shape) for x in (q, k, v)]
    module = module_of(lambda b, *x: b.attention(Attention(*x, causal=True, window=2)), *types)
    run_pipeline(module, verify=True)
    (got,) = Program.compile(emit(module)).run([client.to_device(x) for x in (q, k, v)])
    expected = np.zeros_like(q)
    for i in range(6):
        seen = [j for j in range(3) if i - 2 < j <= i]
        weights = np.exp(k[0, 0, seen] @ q[0, 0, i])
        expected[0, 0, i] = weights / weights.sum() @ v[0, 0, seen] if seen else 0
    np.testing.assert_allclose(client.to_host(got), expected, rtol=1e-5, atol=1e-6)


def test_emission_names_the_missing_pass() -> None:
    types = [("f32", (1, 1, 3, 4))] * 3
    with pytest.raises(LoweringError, match="run decompose-attention first"):
        emit(module_of(lambda b, *x: b.attention(Attention(*x)), *types))
