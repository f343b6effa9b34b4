"""Dropout of attention as models write it."""

from __future__ import annotations

import numpy as np
import pytest

from lazytpu.ir.text import print_module
from lazytpu.lowering import emit
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.passes.attention.written import ARGUMENTS, BACKWARD, FUSE, GRADIENTS, OUTPUT, RETURN, SCORES, P, X, softmax
from tests.passes.modules import keeps, parse_main

W, BITS, SOME = "tensor<2x2x128x128xui32>", "tensor<2x2x128x128xi1>", "%keep : tensor<f32>, %by : tensor<f32>"
DROPPING = f"{ARGUMENTS}, {SOME}, %back : tensor<f32>, %seed : tensor<ui64>, %at : tensor<ui64>"
DRAWN = f"""
    %bits = lazytpu.random_bits %seed, %at : (tensor<ui64>, tensor<ui64>) -> {W}
    %eight = lazytpu.constant 8 : {W}
    %upper = lazytpu.shift_right_logical %bits, %eight : {W}
    %whole = lazytpu.convert %upper : ({W}) -> {P}
    %small = lazytpu.constant 5.9604644775390625e-08 : {P}
    %unit = lazytpu.mul %whole, %small : {P}
    %below = lazytpu.broadcast_in_dim %keep dims = [] : (tensor<f32>) -> {P}
    %kept = lazytpu.compare LT %unit, %below : ({P}, {P}) -> {BITS}
    %mask = lazytpu.convert %kept : ({BITS}) -> {P}"""


def dropped(x: str, of: str, by: str) -> str:
    return f"""
    %{x}0 = lazytpu.mul {of}, %mask : {P}
    %{x}1 = lazytpu.broadcast_in_dim {by} dims = [] : (tensor<f32>) -> {P}
    %{x} = lazytpu.mul %{x}0, %{x}1 : {P}"""


FORWARD = SCORES + softmax("%0") + DRAWN + dropped("d", "%p", "%by") + OUTPUT.replace("%p", "%d")
DROPPED_BACKWARD = (
    BACKWARD.replace("general %p, %g", "general %d, %g")
    .replace("%5 =", dropped("dd", "%dp", "%back").lstrip() + "\n    %5 =")
    .replace("mul %dp, %p", "mul %dd, %p")
    .replace("sub %dp,", "sub %dd,")
)


def test_dropped_probabilities() -> None:
    """The factor of the backward pass is a separate number in the module."""
    operands = "%q, %k, %v, %keep, %by, %seed, %at"
    types = f"{X}, {X}, {X}, tensor<f32>, tensor<f32>, tensor<ui64>, tensor<ui64>"
    rewritten = parse_main(DROPPING, FORWARD + DROPPED_BACKWARD + GRADIENTS)
    run_pipeline(rewritten, passes=FUSE, verify=True)
    text = print_module(rewritten)
    assert f'lazytpu.attention {operands} extra = "dropout" precision = default : ({types}) -> {X}' in text
    assert f'attention_backward %g, {operands} extra = "dropout" precision = default : ({X}, {types})' in text
    assert text.count("lazytpu.div %back, %by") == 2, "of query and key"
    for gone in ("random_bits", "exp", "dot_general"):
        assert gone not in text


def test_values_of_dropped_probabilities() -> None:
    """The fused form drops the same elements; 8 queries per block."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((2, 2, 128, 8)).astype(np.float32) for _ in range(4)]
    arrays += [np.array(0.3, np.float32), np.ones((2, 128), np.bool_), np.array(0.75, np.float32)]
    arrays += [np.array(x, np.float32) for x in (4 / 3, 1.25)] + [np.array(x, np.uint64) for x in (7 << 40, 9)]
    results: list[list[np.ndarray]] = []
    for passes in ("canonicalize", FUSE, f"{FUSE},decompose-attention"):
        module = parse_main(DROPPING, FORWARD + DROPPED_BACKWARD + GRADIENTS)
        run_pipeline(module, passes=f"{passes},flash-attention{{least=0}}", verify=True)
        buffers = Program.compile(emit(module)).run([client.to_device(x) for x in arrays])
        results.append([client.to_host(x) for x in buffers])
    for outputs in zip(*results, strict=True):
        for got in outputs[1:]:
            np.testing.assert_allclose(got, outputs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        FORWARD.replace("LT", "GE") + RETURN,
        FORWARD.replace("%eight = lazytpu.constant 8", "%eight = lazytpu.constant 9") + RETURN,
        FORWARD + f"\nfunc.return %o, %d : {X}, {P}",
        FORWARD + DROPPED_BACKWARD.replace("general %d, %g", "general %p, %g") + GRADIENTS,
        FORWARD + BACKWARD.replace("general %p, %g", "general %d, %g") + GRADIENTS,
        FORWARD.replace("general %d", "general %p") + DROPPED_BACKWARD.replace("%d, %g", "%p, %g") + GRADIENTS,
    ],
    ids=["another mask", "other bits", "dropped ones used", "values by all", "gradient by all", "backward alone"],
)
def test_other_dropouts_are_left_alone(body: str) -> None:
    keeps("fuse-attention{least=0}", DROPPING, body)
