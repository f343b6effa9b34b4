"""torch's flex_attention is the attention op where it changes no scores, with the values of torch's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import lazytpu

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")  # that it computes all scores
DOCUMENTS = torch.arange(48) // 20
MASKS: dict[str, Any] = {
    "none": None,
    "causal": lambda ids, b, h, q, k: q >= k,
    "documents": lambda ids, b, h, q, k: (q >= k) & (ids[q] == ids[k]),
    "hidden": lambda ids, b, h, q, k: (q >= k) & (ids[q] != 1),
    "by head": lambda ids, b, h, q, k: q - h * 3 >= k,
}


def attend(device: str, mask: Any, score_mod: Any, heads: int, returns: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    query, *keys = (torch.randn(2, n, 48, 8) for n in (4, heads, heads))
    leaves = [x.to(device).requires_grad_() for x in (query.transpose(1, 2).contiguous().transpose(1, 2), *keys)]
    ids = DOCUMENTS.to(device)
    block_mask = mask
    if mask is not None:
        block_mask = create_block_mask(lambda b, h, q, k: mask(ids, b, h, q, k), 2, 4, 48, 48, device=device)
    output = flex_attention(
        *leaves,
        score_mod,
        block_mask,
        scale=0.3,
        enable_gqa=heads != 4,
        return_aux=AuxRequest(lse=True) if returns else None,
    )
    results = [output[0], output[1].lse] if returns else [output]
    loss = sum((x.masked_fill(x.isinf(), 0) ** 2).sum() for x in results)
    gradients = torch.autograd.grad(loss, leaves)
    assert [x.stride() for x in gradients] == [x.stride() for x in leaves]
    return [x.detach().cpu() for x in (*results, *gradients)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("heads", [4, 2])
def test_values_are_those_of_all_scores(mask: str, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has no gradients of flex_attention on the CPU: its implementation by ops is compared on the device."""
    from lazytpu.frontend.ops import flex_attention as implementation

    actual = attend("tpu", MASKS[mask], None, heads, False)
    monkeypatch.setattr(implementation, "_keeps_scores", lambda score_mod: False)
    torch.testing.assert_close(actual, attend("tpu", MASKS[mask], None, heads, False), rtol=1e-4, atol=1e-5)


def test_sums_of_scores_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    from lazytpu.frontend.ops import flex_attention as implementation

    actual = attend("tpu", MASKS["hidden"], None, 4, True)
    monkeypatch.setattr(implementation, "_keeps_scores", lambda score_mod: False)
    torch.testing.assert_close(actual, attend("tpu", MASKS["hidden"], None, 4, True), rtol=1e-4, atol=1e-5)


def programs(score_mod: Any, compile: bool) -> str:
    length = 2048
    q, k, v, grad = torch.randn(4, 1, 2, length, 16).to("tpu")
    ids = (torch.arange(length) // 700).to("tpu")
    block_mask = create_block_mask(
        lambda b, h, q, k: MASKS["documents"](ids, b, h, q, k), 1, 1, length, length, device="tpu"
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    call = torch.compile(flex_attention, backend="tpu") if compile else flex_attention
    lazytpu.sync()
    before = len(lazytpu.graphs())
    with lazytpu.mode("lazy"), lazytpu.options(target="v6e"):
        gradients = torch.autograd.grad(call(*leaves, score_mod, block_mask), leaves, grad)
        lazytpu.sync()
    assert all(x.isfinite().all() for x in gradients)
    return "".join(graph.text() for graph in lazytpu.graphs()[before:])


@pytest.mark.parametrize("compile", [False, True])
def test_documents_are_segments_of_the_kernel(compile: bool) -> None:
    text = programs(None, compile)
    assert "segment_ids" in text and "template flash_attention_backward" in text
    assert "exp" not in text.replace("expand", ""), "the sums of the scores are not part of the program"


def test_changed_scores_are_computed() -> None:
    assert "template" not in programs(lambda score, b, h, q, k: score + (q - k), False)


def test_autocast_computes_in_its_dtype() -> None:
    results: list[list[torch.Tensor]] = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        operands = [torch.randn(1, 2, 20, 8).to(device) for _ in range(3)]
        with torch.autocast(device, torch.bfloat16):
            results.append([flex_attention(*operands, score_mod).cpu() for score_mod in (None, halved)])
            if device == "tpu":  # torch has no gradients on the CPU
                leaves = [x.requires_grad_() for x in operands]
                flex_attention(*leaves).sum().backward()
                assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in leaves)
    assert all(x.dtype == torch.bfloat16 for device in results for x in device)
    torch.testing.assert_close(results[1], results[0])


def halved(score: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    return score * 0.5


@pytest.mark.filterwarnings("ignore:where received a uint8")
def test_mask_of_bytes_hides_where_it_is_zero() -> None:
    results: list[torch.Tensor] = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(0)
        operands = [torch.randn(1, 2, 20, 8).to(device) for _ in range(3)]
        mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 20, 20, device=device)
        mask.mask_mod = lambda b, h, q, k: (q >= k).to(torch.uint8)
        results.append(flex_attention(*operands, block_mask=mask).cpu())
    torch.testing.assert_close(results[1], results[0])
