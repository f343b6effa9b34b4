"""Embedding tables against torch's CPU."""

from __future__ import annotations

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


WORDS = torch.tensor([[1, 4, 1], [0, 2, 4]])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_forward_and_backward(dtype: torch.dtype) -> None:
    check(A.embedding.default, values(6, 3, dtype=dtype), WORDS)
    check(A.embedding_dense_backward.default, values(2, 3, 4, dtype=dtype), WORDS, 6, -1, False)


@pytest.mark.parametrize("padding", [-1, 0, 4])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_padding_and_frequency(padding: int, by_frequency: bool) -> None:
    check(A.embedding_dense_backward.default, values(2, 3, 4), WORDS, 6, padding, by_frequency)


def test_shapes_of_indices() -> None:
    for words in (torch.tensor(2), torch.ones(0, dtype=torch.int64), WORDS.int()):
        check(A.embedding.default, values(6, 3), words)
        check(A.embedding_dense_backward.default, values(*words.shape, 3), words, 6, -1, False)


def test_out_of_range() -> None:
    for word in (6, -1):
        words = torch.tensor([0, word])
        with pytest.raises(IndexError, match="index out of range in self"):
            A.embedding.default(values(6, 3), words)
        with pytest.raises(IndexError, match="index out of range in self"):
            run(A.embedding.default, values(6, 3), words, outs=[torch.ones(2, 3)])


def test_renorm() -> None:
    for order in (2.0, 1.0, 3.0):
        check(A.embedding_renorm.default, values(6, 3), torch.tensor([1, 4, 1]), 1.0, order)
    check(A.embedding_renorm_.default, values(6, 3, dtype=torch.bfloat16), WORDS, 0.5, 2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_are_scaled_with_the_bits_of_the_cpu(dtype: torch.dtype) -> None:
    """Where the norm is exact, which the largest element is."""
    table, rows = (values(500, 5) * 2).to(dtype), torch.arange(500)
    scaled = [torch.embedding_renorm_(table.to(d, copy=True), rows.to(d), 1.0, torch.inf) for d in ("cpu", "tpu")]
    assert torch.equal(scaled[0], scaled[1].cpu())
