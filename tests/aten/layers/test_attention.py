"""Scaled dot-product attention and its gradients against torch's CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lazytpu.frontend.ops import attention
from tests.aten.harness import run

OPS = attention.OPS


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


def forward(
    *operands: torch.Tensor,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> list[torch.Tensor]:
    """[output], and with dropout [output, seed, offset]."""
    query, _, value = operands
    out = query.new_empty(*query.shape[:-1], value.shape[-1])
    if not dropout:
        return run(OPS.attention.default, *operands, bias, is_causal, scale, outs=[out])
    number = torch.tensor(0)
    outs = [out, number, number]
    return run(OPS.attention_dropout.default, *operands, bias, is_causal, scale, dropout, outs=outs, rng=(7, 9))


def compare(
    *operands: torch.Tensor, bias: torch.Tensor | None = None, gqa: bool = False, close: float = 2e-5, **options: Any
) -> None:
    """Compare output and gradients with torch's function."""
    leaves = [t.clone().requires_grad_() for t in operands]
    mask = bias.clone().requires_grad_() if bias is not None and bias.is_floating_point() else bias
    expected = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=mask, enable_gqa=gqa, **options)
    (result,) = forward(*operands, bias=bias, **options)
    torch.testing.assert_close(result, expected, rtol=close, atol=close)
    torch.manual_seed(1)
    grad = torch.randn_like(expected)
    wanted = [*leaves, mask] if mask is not None and mask.requires_grad else leaves
    gradients = torch.autograd.grad(expected, wanted, grad)
    backward_options = (None, None, options.get("is_causal", False), options.get("scale"), 0.0, len(wanted) == 4)
    ours = run(OPS.attention_backward.default, grad, *operands, bias, *backward_options, outs=list(wanted))
    torch.testing.assert_close(ours, list(gradients), rtol=close * 5, atol=close * 5)


def test_plain() -> None:
    compare(values(2, 3, 4, 8), values(2, 3, 6, 8), values(2, 3, 6, 5))


def test_causal_and_scale() -> None:
    q, k, v = values(2, 3, 6, 8), values(2, 3, 6, 8).flip(2), values(2, 3, 6, 8).flip(0)
    compare(q, k, v, is_causal=True)
    compare(q, k, v, is_causal=True, scale=0.3)
    compare(values(1, 1, 4, 8), values(1, 1, 7, 8), values(1, 1, 7, 8), is_causal=True)


def test_biases() -> None:
    q, k, v = values(2, 3, 4, 8), values(2, 3, 6, 8), values(2, 3, 6, 8).flip(0)
    compare(q, k, v, bias=values(4, 6))
    compare(q, k, v, bias=values(2, 1, 1, 6))
    compare(q, k, v, bias=values(2, 3, 4, 6))
    compare(q, k, v, bias=values(2, 1, 4, 6) > 0)


def test_hidden_row_gives_zeros() -> None:
    q, k, v = values(1, 1, 3, 4), values(1, 1, 3, 4).flip(2), values(1, 1, 3, 4).flip(3)
    bias = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    result = forward(q, k, v, bias=bias)
    assert torch.equal(result[0][0, 0, 1], torch.zeros(4))
    compare(q, k, v, bias=bias)


def test_shared_key_heads() -> None:
    compare(values(2, 6, 4, 8), values(2, 2, 5, 8), values(2, 2, 5, 8).flip(0), gqa=True)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-6), (torch.bfloat16, 3e-2)], ids=str)
def test_dtypes(dtype: torch.dtype, close: float) -> None:
    operands = values(2, 3, 4, 8, dtype=dtype), values(2, 3, 6, 8, dtype=dtype), values(2, 3, 6, 8, dtype=dtype).flip(0)
    compare(*operands, close=close)


def test_without_a_batch() -> None:
    q, k, v = values(3, 4, 8), values(3, 6, 8), values(3, 6, 8).flip(0)
    compare(q, k, v, is_causal=True)


def test_dropout_drops_the_same_in_both_directions() -> None:
    """With value the identity, the output is the dropped probabilities, and so is the gradient of value."""
    n = 40
    q, k, v = values(1, 1, n, 8), values(1, 1, n, 8).flip(2), torch.eye(n)[None, None]
    (kept,) = forward(q, k, v)
    dropped, seed, offset = forward(q, k, v, dropout=0.25)
    zero = dropped == 0
    assert 0.2 < zero.float().mean() < 0.3
    torch.testing.assert_close(dropped[~zero], kept[~zero] / 0.75)
    dropout_options = (seed, offset, False, None, 0.25, False)
    grads = run(OPS.attention_backward.default, v, q, k, v, None, *dropout_options, outs=[q, k, v])
    torch.testing.assert_close(grads[2], dropped.transpose(2, 3))
    assert forward(q, k, v, dropout=1.0)[0].eq(0).all()
