"""torch's attention of the CPU called by name: outputs, logsumexps, layouts, gradients and errors as on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

flash: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def operands(dtype: torch.dtype = torch.float32, heads: int = 4, keys: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 4, 5, 8), (2, heads, keys, 8), (2, heads, keys, 8)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def compare(ours: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], tolerance: float) -> None:
    for x, y in zip(ours, expected, strict=True):
        assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        torch.testing.assert_close(x.cpu(), y, rtol=tolerance, atol=tolerance)


def both_ways(parts: list[torch.Tensor], tolerance: float, *options: Any, **named: Any) -> None:
    """Compare the results and the gradients, by autograd and by the backward op called by name."""
    moved = {name: x.to("tpu") if isinstance(x, torch.Tensor) else x for name, x in named.items()}
    alone = [x.detach().requires_grad_() for x in parts]
    ours = [x.detach().to("tpu").requires_grad_() for x in parts]
    expected, results = flash(*alone, *options, **named), flash(*ours, *options, **moved)
    compare(results, expected, tolerance)
    assert [x.requires_grad for x in results] == [x.requires_grad for x in expected]
    grad = torch.randn(expected[0].shape, generator=torch.Generator().manual_seed(1)).to(expected[0].dtype)
    of_cpu = torch.autograd.grad(expected[0], alone, grad)
    compare(torch.autograd.grad(results[0], ours, grad.to("tpu")), of_cpu, 2 * tolerance)
    saved = [x.detach().to("tpu") for x in (grad, *parts, *expected)]
    compare(backward(*saved, 0.0, *(options[1:] or [False]), **moved), of_cpu, 2 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_results_and_gradients(dtype: torch.dtype, causal: bool):
    both_ways(operands(dtype), TOLERANCE[dtype], 0.0, causal)


def test_heads_of_keys_are_shared():
    both_ways(operands(heads=2, keys=7), 2e-6, 0.0, True, scale=0.3)


def test_output_has_the_layout_of_the_query():
    query, key, value = operands()
    both_ways([query.transpose(1, 2).contiguous().transpose(1, 2), key, value], 2e-6)


@pytest.mark.parametrize("shape", [(5, 5), (1, 5), (1, 1, 5, 5), (2, 1, 1, 5)])
def test_masks_are_added(shape: tuple[int, ...]):
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    both_ways(operands(), 2e-6, 0.0, True, attn_mask=mask)


def test_queries_without_keys_have_zeros():
    mask = torch.zeros(5, 5).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(), -torch.inf)
    both_ways(operands(), 2e-6, attn_mask=mask)


@pytest.mark.parametrize("queries", [0, 3])
def test_no_keys_and_no_queries(queries: int):
    query, key = torch.randn(2, 4, queries, 8, device="tpu"), torch.randn(2, 4, 0, 8, device="tpu")
    output, logsumexp = flash(query, key, key)
    assert output.shape == query.shape
    assert not output.any() and not logsumexp.any() and logsumexp.shape == (2, 4, queries)


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: ((q[0], k, v), {}),
        lambda q, k, v: ((q.int(), k.int(), v.int()), {}),
        lambda q, k, v: ((q, k[..., :4], v), {}),
        lambda q, k, v: ((q.double(), k, v), {}),
        lambda q, k, v: ((q, k, v, 0.5), {}),
        lambda q, k, v: ((q, k, v), {"attn_mask": q[0, 0, :, :5].bool()}),
        lambda q, k, v: ((q, k, v), {"attn_mask": q[0, :, :, :5]}),
    ],
)
def test_errors_equal_the_cpu(change: Any):
    messages: list[tuple[type[Exception], str]] = []
    for device in ("cpu", "tpu"):
        args, named = change(*[x.to(device) for x in operands()])
        with pytest.raises(RuntimeError) as error:
            flash(*args, **named)
        messages.append((error.type, str(error.value)))
    assert messages[0] == messages[1]


def test_attention_of_doubles_keeps_their_digits():
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    query, key, value = operands(torch.float64)
    output, logsumexp, *_ = efficient(*[x.to("tpu") for x in (query, key, value)], None, True)
    compare((output, logsumexp), tuple(x.contiguous() for x in flash(query, key, value)), 1e-12)
