"""The flash kernels: interpreted on the CPU, beside the same computed with scores in memory, and lowered for a TPU."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from lazytpu.ir.attention import Attention
from lazytpu.lowering import emit, stablehlo_text
from lazytpu.lowering.templates import flash_attention as flash
from lazytpu.passes.pipeline import run_pipeline
from lazytpu.runtime import client
from lazytpu.runtime.program import Program
from tests.lowering.harness import module_of


def values(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


CASES: dict[str, dict[str, Any]] = {
    "grouped": {"query": (1, 2, 256, 64), "key": (1, 1, 128, 64)},
    "padded": {"query": (3, 1, 128, 16), "key": (3, 1, 128, 16), "window": 100, "first": [(30, 128, 0)]},
    "shifted": {"query": (1, 1, 128, 16), "key": (1, 1, 256, 16), "window": 40, "offset": [100, -7, 0]},
    "stored": {"query": (2, 2, 128, 8), "key": (2, 1, 128, 8), "causal": False, "stored": [0, -3]},
}


@pytest.mark.parametrize("case", CASES)
def test_interpreted_kernels(case: str) -> None:
    """`first` is the first key that each batch sees; one sees none, another's first rows none."""
    of = CASES[case]
    shape, of_key = of["query"], of["key"]
    q, k, v, grad = values(shape, of_key, of_key, shape)
    params = {"causal": of.get("causal", True), "window": of.get("window", 0), "precision": "highest"}

    def both(forward: Any, backward: Any, **more: Any) -> Any:
        def run(*mask: Any) -> Any:
            output, sums = forward(q / 4, k, v, *mask, **params, **more)
            return output, *backward(grad, output, sums, q / 4, k, v, *mask, **params, **more)

        return jax.jit(run)

    kernels = both(flash.forward_kernel, flash.backward_kernel, interpret=True)
    expected = both(flash.in_memory, flash.in_memory_backward)
    keys = np.arange(of_key[2])[None]
    masks = [(keys >= np.array(first)[:, None], None, None) for first in of.get("first", ())]
    masks += [(None, np.int32(offset), None) for offset in of.get("offset", ())]
    masks += [(None, None, np.tri(shape[2], k=k, dtype=bool)[None]) for k in of.get("stored", ())]
    for mask in masks or [(None, None, None)]:
        for got, wanted in zip(kernels(*mask), expected(*mask), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_the_two_passes_agree(masked: bool) -> None:
    """A module through either pass gives the same values here."""
    shape, shared = (1, 2, 128, 16), (1, 1, 128, 16)
    arrays: list[np.ndarray] = values(shape, shape, shared, shared)
    if masked:
        arrays.append(np.arange(128)[None, None, None] >= 5)

    def build(b, grad, q, k, v, *mask):
        offset = b.constant(3, "i32") if masked else None
        of = Attention(q, k, v, *mask, offset=offset, causal=True, window=90, scale=0.3)
        return b.attention(of), *b.attention_backward(grad, of)

    results = []
    for passes in ("decompose-attention", "flash-attention{least=0}"):
        types = [("i1" if x.dtype == bool else "f32", x.shape) for x in arrays]
        made = module_of(build, *types)
        run_pipeline(made, passes=passes, verify=True)
        program = Program.compile(emit(made))
        results.append([client.to_host(x) for x in program.run([client.to_device(x) for x in arrays])])
    for got, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_lowered_for_a_tpu() -> None:
    """Forward once, and the two kernels of the backward pass; the forward kernel that they trace is dead."""

    def build(b, q, k, v):
        of = Attention(q, k, v, causal=True, precision="default")
        return b.attention(of), *b.attention_backward(q, of)

    made = module_of(build, *[("bf16", (1, 2, 256, 64))] * 3)
    run_pipeline(made, passes="flash-attention{least=0}", verify=True)
    text = stablehlo_text(emit(made, platform="tpu"))
    assert text.count("@tpu_custom_call") == 4
    assert "256x256" not in text
