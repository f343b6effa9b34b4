"""Attention to pages: equal to attention of each sequence on its own, for prompts and next tokens in one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import lazytpu
from lazytpu.kernels.ragged_paged_attention import TILE, ragged_paged_attention
from tests.kernels.test_platforms import stablehlo

PAGE, PAGES, MOST = 16, 24, 6


def case(new: list[int], lengths: list[int], heads: int, shared: int, width: int, dtype: torch.dtype, spare: int = 3):
    """Sequences with `new` queries and `lengths` tokens in pages in any order; all else is NaN or out of range."""
    generator = torch.Generator().manual_seed(0)
    rows, tokens = len(new) + 1, sum(new) + spare
    queries = torch.randn(tokens, heads, width, generator=generator).to(dtype)
    pages = torch.full((PAGES, PAGE, 2 * shared, width), torch.nan, dtype=dtype)
    order = torch.randperm(PAGES, generator=generator).tolist()
    table = torch.zeros(rows, MOST, dtype=torch.int32)
    for row, length in enumerate(lengths):
        for at in range(0, length, PAGE):
            page, filled = order.pop(), min(PAGE, length - at)
            table[row, at // PAGE] = page
            pages[page, :filled] = torch.randn(filled, 2 * shared, width, generator=generator).to(dtype)
    ends = torch.tensor([0, *new, -7]).cumsum(0).int()
    return queries, pages, torch.tensor([*lengths, 1 << 30]).int(), table, ends, torch.tensor([len(new)]).int()


def reference(operands: Any, scale: float, window: int | None, cap: float | None) -> torch.Tensor:
    queries, pages, lengths, table, ends, count = operands
    output = torch.zeros_like(queries)
    for row in range(int(count)):
        first, end, length = int(ends[row]), int(ends[row + 1]), int(lengths[row])
        held = pages[table[row].long()].flatten(0, 1)[:length]
        group = queries.shape[1] // (held.shape[1] // 2)
        q = queries[first:end].float().transpose(0, 1)
        k, v = (held[:, at::2].float().repeat_interleave(group, 1).transpose(0, 1) for at in (0, 1))
        places = torch.arange(length)
        distance = places[length - (end - first) :, None] - places
        seen = (distance >= 0) & (distance < (window or length))
        if cap is None:
            result = scaled_dot_product_attention(q, k, v, seen, scale=scale)
        else:
            scores = cap * torch.tanh(q @ k.mT * scale / cap)
            result = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
        output[first:end] = result.transpose(0, 1).to(output.dtype)
    return output


MIXED = ([1, 20, 1, TILE + 5], [40, 20, 90, TILE + 9])


@pytest.mark.parametrize(
    ("heads", "shared", "window", "cap"), [(4, 4, None, None), (4, 2, None, 5.0), (6, 1, 9, None), (4, 2, 30, 2.0)]
)
def test_values_are_those_of_each_sequence(heads: int, shared: int, window: int | None, cap: float | None) -> None:
    operands = case(*MIXED, heads, shared, 8, torch.float32)
    settings = {"scale": 0.3, "sliding_window": window, "soft_cap": cap}
    actual = ragged_paged_attention(*(x.to("tpu") for x in operands), **settings)
    torch.testing.assert_close(actual.cpu(), reference(operands, 0.3, window, cap), rtol=1e-4, atol=1e-5)


def test_pages_of_eight_bits_are_scaled() -> None:
    queries, pages, *indices = case(*MIXED, 4, 2, 8, torch.float32)
    stored = pages.nan_to_num().to(torch.float8_e4m3fn)
    operands = [x.to("tpu") for x in (queries, stored, *indices)]
    actual = ragged_paged_attention(*operands, scale=0.3, key_scale=0.5, value_scale=2.0)
    scaled = stored.float() * torch.tensor([0.5, 2.0]).repeat(2)[:, None]
    torch.testing.assert_close(
        actual.cpu(), reference((queries, scaled, *indices), 0.3, None, None), rtol=1e-4, atol=1e-5
    )


def test_queries_may_be_padded() -> None:
    """Steps of other numbers of tokens share a program."""
    ragged_paged_attention.check_padding(*(x.to("tpu") for x in case([1, 5], [40, 20], 4, 2, 8, torch.float32, 0)))


@pytest.mark.parametrize(
    ("width", "shared", "dtype", "calls"),
    [(128, 2, torch.bfloat16, 1), (128, 4, torch.float32, 1), (64, 2, torch.bfloat16, 0), (128, 3, torch.bfloat16, 0)],
)
def test_kernel_is_used_where_it_supports_the_sizes(width: int, shared: int, dtype: torch.dtype, calls: int) -> None:
    operands = [x.to("tpu") for x in case(*MIXED, 2 * shared, shared, width, dtype)]
    before = lazytpu.metrics()["cpu_fallbacks"]
    text = stablehlo(lambda: ragged_paged_attention(*operands, scale=0.1), "v6e")
    assert text.count("@tpu_custom_call") == calls
    assert lazytpu.metrics()["cpu_fallbacks"] == before
