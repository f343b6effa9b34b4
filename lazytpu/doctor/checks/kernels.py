"""Kernels and their substitutes, compared with torch's attention on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import lazytpu
from lazytpu.doctor.check import check

LENGTH, WIDTH = 2048, 16
"""The number of queries and keys: just long enough for a kernel to pay."""


@check(limit=120)
def flash_attention() -> str:
    """Long attention uses the kernel, forward and backward; except on a TPU, blocks take its place."""
    grad, *operands = _heads(1, 4)
    _agree("flash_attention", grad, operands, causal=True)
    documents = torch.arange(LENGTH) // 700  # of a packed sequence
    _agree("flash_attention", grad, operands, documents=documents)
    if _on_tpu():
        return "the Pallas kernel, compiled by Mosaic"
    return "by blocks in XLA's ops, as everywhere but on a TPU"


@check(limit=120)
def attention_by_blocks() -> str:
    """Attention that no kernel supports, with a bias for each query, is computed by blocks in XLA's ops."""
    grad, *operands = _heads(8, 4)
    bias = torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(1))
    _agree("attention_by_blocks", grad, operands, bias)
    return "in XLA's ops"


@check(limit=120)
def pallas() -> str:
    """The Pallas kernel agrees with the blocks, forward and backward; it is interpreted where there is no TPU."""
    import jax
    import numpy as np

    from lazytpu.lowering.templates import flash_attention as flash
    from lazytpu.lowering.templates.attention_blocks import Extra, How

    interpreted, how = not _on_tpu(), How(causal=True)
    q, k, v, grad = np.random.default_rng(0).standard_normal((4, 1, 1, 256, WIDTH), np.float32)

    def kernel(q: Any, k: Any, v: Any, grad: Any) -> tuple[Any, ...]:
        output, sums = flash.forward_kernel(q, k, v, Extra(), how, interpret=interpreted)
        return output, *flash.backward_kernel(grad, output, sums, q, k, v, Extra(), how, interpret=interpreted)

    def blocks(q: Any, k: Any, v: Any, grad: Any) -> tuple[Any, ...]:
        output, sums = flash.in_blocks(q, k, v, Extra(), how)
        return output, *flash.in_blocks_backward(grad, output, sums, q, k, v, Extra(), how)

    for actual, expected in zip(*(jax.jit(function)(q, k, v, grad) for function in (kernel, blocks)), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)
    return "interpreted: Mosaic only compiles it on a TPU" if interpreted else "compiled by Mosaic"


def _on_tpu() -> bool:
    from lazytpu.runtime.xla import client

    return client.platform() == "tpu"


def _heads(heads: int, count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, LENGTH, WIDTH, generator=generator) for _ in range(count)]


def _agree(
    template: str,
    grad: torch.Tensor,
    operands: list[torch.Tensor],
    bias: torch.Tensor | None = None,
    causal: bool = False,
    documents: torch.Tensor | None = None,
) -> None:
    """Check that the output and the gradients of q, k and v agree with the CPU's, and that the program computes them by
    `template`. A query sees the keys of its own one of `documents`."""
    results: list[list[torch.Tensor]] = []
    with lazytpu.mode("lazy"), lazytpu.options(target=None if _on_tpu() else "v6e"):
        for device in ("cpu", "tpu"):
            leaves = [x.to(device).requires_grad_() for x in operands]
            query, key, value = leaves
            mask = None if bias is None else bias.to(device)
            if documents is not None:
                ids = documents.to(device)
                mask = ids[:, None] == ids
            output = scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
            gradients = torch.autograd.grad(output, leaves, grad.to(device))
            lazytpu.sync()
            results.append([x.detach().cpu() for x in (output, *gradients)])
    text = "".join(graph.text() for graph in lazytpu.graphs()[-2:])
    for name in (template, f"{template}_backward", *(["segment_ids"] if documents is not None else [])):
        if f" {name} " not in text:
            raise ValueError(f"no program calls the template {name}")
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=2e-3, atol=2e-3)
