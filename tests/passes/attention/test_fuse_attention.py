"""Attention as models write it: recognized forms, unrecognized forms, and values before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lazytpu.ir.text import print_module
from lazytpu.lowering import emit
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime.xla import client
from lazytpu.runtime.xla.program import Program
from tests.lowering.harness import module_of
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
    R,
    X,
    softmax,
)
from tests.passes.modules import keeps, rewrites


def test_with_its_backward_pass() -> None:
    """The gradient of the key is transposed, as in its product."""
    rewrites(
        FUSE,
        ARGUMENTS,
        SCORES + softmax("%0") + OUTPUT + BACKWARD + GRADIENTS,
        f"""
        %o = lazytpu.attention %q, %k, %v precision = default : {X}
        %dq, %0, %dv = lazytpu.attention_backward %g, %q, %k, %v precision = default
                     : ({X}, {X}, {X}, {X}) -> ({X}, {X}, {X})
        %dk = lazytpu.transpose %0 [0, 1, 3, 2] : ({X}) -> tensor<2x2x8x128xf32>
        func.return %o, %dq, %dk, %dv : {X}, {X}, tensor<2x2x8x128xf32>, {X}""",
    )


@pytest.mark.parametrize(
    "body",
    [
        SCORES + softmax("%0") + OUTPUT + f"\nfunc.return %o, %p : {X}, {P}",
        SCORES + softmax("%0") + OUTPUT + f"\nfunc.return %o, %max : {X}, {R}",
        SCORES + softmax("%0", dim=2) + OUTPUT + RETURN,
        SCORES + CAUSAL.replace("GE", "NE").replace("1x1x", "1x2x") + softmax("%masked") + OUTPUT + RETURN,
        SCORES + CAUSAL.replace("-inf", "-2.0") + softmax("%masked") + OUTPUT + RETURN,
        SCORES + softmax("%0") + OUTPUT + BACKWARD + f"\nfunc.return %o, %dq, %ds : {X}, {X}, {P}",
        SCORES + softmax("%0") + OUTPUT + BACKWARD.replace("%8, %p", "%8, %3") + GRADIENTS,
        SCORES + f"\n%w = lazytpu.mul %0, %0 : {P}" + softmax("%w") + OUTPUT + RETURN,
        SCORES + f"\n%w = lazytpu.add %0, %0 : {P}" + softmax("%w") + OUTPUT + RETURN,
    ],
    ids=[
        "probabilities used",
        "maximum used",
        "softmax over queries",
        "a mask for each head",
        "masked scores count",
        "gradient of scores used",
        "another gradient",
        "scores scaled by a tensor",
        "scores added to scores",
    ],
)
def test_unrecognized_forms_are_left_alone(body: str) -> None:
    keeps("fuse-attention{least=0}", ARGUMENTS, body)


def test_attention_with_few_scores_is_left_alone() -> None:
    keeps("fuse-attention", ARGUMENTS, SCORES + softmax("%0") + OUTPUT + RETURN)


def _softmax(b: Any, x: Any) -> Any:
    shape = [*x.type.get_shape()]
    axes = list(range(len(shape) - 1))
    exps = b.exp(b.sub(x, b.broadcast_in_dim(b.reduce("max", x, [len(axes)]), shape, axes)))
    return b.div(exps, b.broadcast_in_dim(b.reduce("add", exps, [len(axes)]), shape, axes))


def _merged(b: Any, q: Any, k: Any, v: Any, shift: Any) -> Any:
    """[batch, length, heads, width] operands, batch and heads merged for the products, a window at a run-time
    offset."""
    q, k, v = (b.reshape(b.transpose(x, [0, 2, 1, 3]), (4, 128, 8)) for x in (q, k, v))
    dots = b.reshape(b.dot_general(q, k, [0], [0], [2], [2]), (2, 2, 128, 128))
    dots = b.mul(dots, b.constant(0.3, "f32", (2, 2, 128, 128)))
    rows, columns = (b.iota("i32", (128, 128), dim) for dim in (0, 1))
    rows = b.add(rows, b.broadcast_to(shift, (128, 128)))
    seen = b.and_(
        b.compare("LE", columns, rows), b.compare("LT", b.sub(rows, columns), b.constant(30, "i32", (128, 128)))
    )
    hidden = b.constant(-1e9, "f32", (2, 2, 128, 128))
    dots = b.select(b.not_(b.broadcast_to(seen, (2, 2, 128, 128))), hidden, dots)
    weights = b.reshape(_softmax(b, dots), (4, 128, 128))
    return b.dot_general(v, weights, [0], [0], [1], [2])


def _half(b: Any, q: Any, k: Any, v: Any, shift: Any) -> Any:
    """bf16 operands, three dimensions, the softmax in f32."""
    q, k, v = (b.convert(b.reshape(b.transpose(x, [0, 2, 1, 3]), (4, 128, 8)), "bf16") for x in (q, k, v))
    dots = b.convert(b.dot_general(q, k, [0], [0], [2], [2], dtype="f32"), "bf16")
    weights = b.convert(_softmax(b, b.convert(dots, "f32")), "bf16")
    return b.dot_general(weights, v, [0], [0], [2], [1], dtype="f32")


def _run(build: Callable[..., Any], passes: str) -> tuple[str, np.ndarray, list[np.ndarray]]:
    """Return the text of the module after `passes`, its results, from the kernel if it has one, and the arguments."""
    types: list[Any] = [("f32", (2, 128, 2, 8))] * 3 + [("i32", ())]
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(shape).astype(np.float32) for _, shape in types[:3]] + [np.array(5, np.int32)]
    rewritten = module_of(build, *types)
    run_pipeline(rewritten, passes=passes, verify=True)
    text = print_module(rewritten)
    run_pipeline(rewritten, passes="flash-attention{least=0}", verify=True)
    (result,) = Program.compile(emit(rewritten)).run([client.to_device(x) for x in arguments])
    return text, client.to_host(result), arguments


PLAIN, FUSED = "canonicalize", "canonicalize,fuse-attention{least=0},dce"


def test_values() -> None:
    plain, expected, _ = _run(_merged, PLAIN)
    fused, result, _ = _run(_merged, FUSED)
    assert "lazytpu.attention" not in plain and "lazytpu.attention" in fused
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_values_in_half_precision() -> None:
    """The kernel keeps scores in f32, where the model rounds them, and is closer to float64."""
    plain, spelled, arguments = _run(_half, PLAIN)
    fused, result, _ = _run(_half, FUSED)
    assert "lazytpu.attention" not in plain and "lazytpu.attention" in fused
    q, k, v = (torch.from_numpy(x).bfloat16().double().transpose(1, 2).reshape(4, 128, 8) for x in arguments[:3])
    exact = ((q @ k.mT).softmax(-1) @ v).numpy()
    error = np.abs(result - exact).max()
    assert error < 1e-2 and error < np.abs(spelled - exact).max()
