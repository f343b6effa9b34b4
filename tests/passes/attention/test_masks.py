"""Masks and biases as models write them: the options of the op that they become, and the results of queries without
keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lazytpu.ir.text import print_module
from lazytpu.lowering import emit
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.passes.attention.written import (
    ARGUMENTS,
    BACKWARD,
    CAUSAL,
    FUSE,
    GRADIENTS,
    OUTPUT,
    RETURN,
    SCORES,
    P,
    X,
    softmax,
)
from tests.passes.modules import keeps, parse_main, rewrites


def test_causal() -> None:
    rewrites(
        FUSE,
        ARGUMENTS,
        SCORES + CAUSAL + softmax("%masked") + OUTPUT + RETURN,
        f"""
        %o = lazytpu.attention %q, %k, %v causal = true precision = default : {X}
        func.return %o : {X}""",
    )


def test_unrecognized_mask_is_read_from_memory() -> None:
    mask = "tensor<1x1x128x128xi1>"
    rewritten = parse_main(ARGUMENTS, SCORES + CAUSAL.replace("GE", "NE") + softmax("%masked") + OUTPUT + RETURN)
    run_pipeline(rewritten, passes=FUSE, verify=True)
    text = print_module(rewritten)
    op = 'lazytpu.attention %q, %k, %v, %seen extra = "bias" precision = default hidden = nan'
    assert f"{op} : ({X}, {X}, {X}, {mask})" in text


def test_run_time_scale_and_padding() -> None:
    rewrites(
        FUSE,
        ARGUMENTS,
        f"""{SCORES}
        %wide = lazytpu.broadcast_in_dim %s dims = [] : (tensor<f32>) -> {P}
        %scaled = lazytpu.div %0, %wide : {P}
        %zero = lazytpu.constant 0.0 : tensor<2x1x128x128xf32>
        %low = lazytpu.constant -3.0e+38 : tensor<2x1x128x128xf32>
        %rows = lazytpu.broadcast_in_dim %m dims = [0, 3] : (tensor<2x128xi1>) -> tensor<2x1x128x128xi1>
        %added = lazytpu.select %rows, %zero, %low
                 : (tensor<2x1x128x128xi1>, tensor<2x1x128x128xf32>, tensor<2x1x128x128xf32>) -> tensor<2x1x128x128xf32>
        %bias = lazytpu.broadcast_in_dim %added dims = [0, 1, 2, 3] : (tensor<2x1x128x128xf32>) -> {P}
        %masked = lazytpu.add %scaled, %bias : {P}
        {softmax("%masked")}{OUTPUT}{RETURN}""",
        f"""
        %0 = lazytpu.constant 1.0 : tensor<f32>
        %1 = lazytpu.div %0, %s : tensor<f32>
        %2 = lazytpu.reshape %m : (tensor<2x128xi1>) -> tensor<2x1x1x128xi1>
        %o = lazytpu.attention %q, %k, %v, %2, %1 extra = "bias,scale" precision = default hidden = mean
             : ({X}, {X}, {X}, tensor<2x1x1x128xi1>, tensor<f32>) -> {X}
        func.return %o : {X}""",
    )


def test_a_bias_for_each_head() -> None:
    """A bias as in ALiBi; a row of -inf gives NaN, as in a softmax."""
    narrow = "tensor<2x1x128xf32>"
    rewrites(
        FUSE,
        f"{ARGUMENTS}, %a : {narrow}",
        f"""{SCORES}
        %wide = lazytpu.broadcast_in_dim %a dims = [1, 2, 3] : ({narrow}) -> {P}
        %biased = lazytpu.add %wide, %0 : {P}
        {softmax("%biased")}{OUTPUT}{RETURN}""",
        f"""
        %0 = lazytpu.reshape %a : ({narrow}) -> tensor<1x2x1x128xf32>
        %o = lazytpu.attention %q, %k, %v, %0 extra = "bias" precision = default hidden = nan
             : ({X}, {X}, {X}, tensor<1x2x1x128xf32>) -> {X}
        func.return %o : {X}""",
    )


SEEN = """
    %m4 = lazytpu.broadcast_in_dim %m dims = [0, 3] : (tensor<2x128xi1>) -> tensor<2x2x128x128xi1>"""


def _masked(number: str, added: bool, of: str = "%0", name: str = "masked") -> str:
    """Scores with the keys outside %m4 hidden, by a select or by an addition."""
    if not added:
        return f"""
    %low_{name} = lazytpu.constant {number} : {P}
    %{name} = lazytpu.select %m4, {of}, %low_{name} : (tensor<2x2x128x128xi1>, {P}, {P}) -> {P}"""
    return f"""
    %zero_{name} = lazytpu.constant 0.0 : {P}
    %low_{name} = lazytpu.constant {number} : {P}
    %more_{name} = lazytpu.select %m4, %zero_{name}, %low_{name} : (tensor<2x2x128x128xi1>, {P}, {P}) -> {P}
    %{name} = lazytpu.add {of}, %more_{name} : {P}"""


UNMASKED = f"""
    %none = lazytpu.constant 0.0 : {P}
    %du = lazytpu.select %m4, %ds, %none : (tensor<2x2x128x128xi1>, {P}, {P}) -> {P}
    %dq ="""


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("number", "hidden"), [("-inf", "nan"), ("-3.4028234663852886e+38", "mean")])
def test_queries_without_keys(number: str, added: bool, hidden: str) -> None:
    """With the mask of one batch all False, output and gradients agree between the model as written, fused and
    decomposed, and fused and computed by blocks."""
    back = BACKWARD if added else BACKWARD.replace("%dq =", UNMASKED).replace("_general %ds,", "_general %du,")
    back = back if added else back.replace("%q, %ds lhs", "%q, %du lhs")
    body = SEEN + SCORES + _masked(number, added) + softmax("%masked") + OUTPUT + back + GRADIENTS
    rng = np.random.default_rng(0)
    arrays: list[Any] = [rng.standard_normal((2, 2, 128, 8)).astype(np.float32) for _ in range(4)]
    arrays += [np.float32(0), np.stack([np.arange(128) > 5, np.zeros(128, bool)])]
    results = []
    for passes in ("canonicalize", f"{FUSE},decompose-attention", f"{FUSE},flash-attention{{least=0}}"):
        module = parse_main(ARGUMENTS, body)
        run_pipeline(module, passes=passes.split(",decompose")[0].split(",flash")[0], verify=True)
        if passes != "canonicalize":
            flags = f"hidden = {hidden} added = true" if added else f"hidden = {hidden}"
            assert print_module(module).count(f"precision = default {flags} :") == 2
            run_pipeline(module, passes=passes.rsplit(",", 1)[1], verify=True)
        results.append([client.to_host(x) for x in Program.compile(emit(module)).run([*map(client.to_device, arrays)])])
    expected = results[0]
    assert np.isnan(expected[0][1]).all() == (hidden == "nan") and not np.isnan(expected[0][0]).any()
    for got in results[1:]:
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "masks",
    [
        _masked("-1.0e+09", True),
        _masked("-inf", False, name="once") + _masked("-1.0e+09", False, "%once"),
        _masked("-3.0e+38", True, name="once") + _masked("-3.0e+38", True, "%once"),
        _masked("-1.0e+09", False, name="once")
        + f"""
    %half = lazytpu.constant 1.0e-06 : {P}
    %masked = lazytpu.mul %once, %half : {P}""",
    ],
    ids=["scores left in what hides", "of two kinds", "added twice", "hidden scores that count"],
)
def test_masks_that_may_hide_all_keys_are_left_alone(masks: str) -> None:
    keeps("fuse-attention{least=0}", ARGUMENTS, SEEN + SCORES + masks + softmax("%masked") + OUTPUT + RETURN)
