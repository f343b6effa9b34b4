"""The op by which attention over shards is merged: its output, logsumexp, and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

efficient: Any = torch.ops.aten._scaled_dot_product_efficient_attention


def operands(queries: int, keys: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, n, 4, generator=generator) for n in (queries, keys, keys)]


@pytest.mark.parametrize(
    ("queries", "keys", "causal", "scale"), [(5, 5, True, None), (5, 7, False, 0.3), (1, 1, True, 1.0)]
)
def test_values_and_gradients(queries: int, keys: int, causal: bool, scale: float | None):
    alone = [x.requires_grad_() for x in operands(queries, keys)]
    expected = F.scaled_dot_product_attention(*alone, is_causal=causal, scale=scale)
    (expected * torch.arange(4.0)).sum().backward()
    ours = [x.detach().to("tpu").requires_grad_() for x in alone]
    output, logarithms, *_ = efficient(*ours, None, True, 0.0, causal, scale=scale)
    (output * torch.arange(4.0).to("tpu")).sum().backward()
    torch.testing.assert_close(output.cpu(), expected)
    scores = alone[0] @ alone[1].mT * (0.5 if scale is None else scale)
    if causal:
        scores = scores.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close(logarithms.cpu(), scores.logsumexp(-1))
    torch.testing.assert_close([x.grad.cpu() for x in ours], [x.grad for x in alone])


def test_keys_in_two_parts_are_merged_by_their_logarithms():
    query, key, value = (x.to("tpu") for x in operands(5, 8))
    halves = [efficient(query, k, v, None, True)[:2] for k, v in zip(key.chunk(2, 2), value.chunk(2, 2), strict=True)]
    reference, of_all = efficient(query, key, value, None, True)[:2]
    shares = torch.stack([logarithms - of_all for _, logarithms in halves]).exp()
    merged = sum(share[..., None] * output for share, (output, _) in zip(shares, halves, strict=True))
    torch.testing.assert_close(merged, reference)


def test_half_precision_keeps_logarithms_in_float32():
    query, key, value = (x.to("tpu", torch.bfloat16) for x in operands(3, 3))
    output, logarithms, seed, offset = efficient(query, key, value, None, False)
    assert (output.dtype, logarithms.dtype, logarithms.shape) == (torch.bfloat16, torch.float32, (2, 3, 0))
    assert seed.ndim == offset.ndim == 0


@pytest.mark.parametrize(("bias", "dropout"), [(True, 0.0), (False, 0.5)])
def test_bias_and_dropout_are_rejected(bias: bool, dropout: float):
    query, key, value = (x.to("tpu") for x in operands(3, 3))
    with pytest.raises(NotImplementedError, match="no attn_bias and no dropout"):
        efficient(query, key, value, torch.zeros(2, 3, 3, 3, device="tpu") if bias else None, True, dropout)
