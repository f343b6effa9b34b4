"""Tensors that share storages in and out of graphs, and autograd's version counters for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch


def changed(device: str, function: Callable[..., Any], change: int) -> Any:
    """Return the error of a backward pass after one of the tensors was changed in place."""
    x = torch.ones(2, 3, device=device, requires_grad=True)
    second = torch.ones(2, 3, device=device)
    results = torch.compile(function, backend="tpu" if device == "tpu" else "aot_eager")(x, second)
    with torch.no_grad():
        (second, *results)[change].mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        results[0].backward()


SAVED: dict[str, tuple[Callable[..., Any], int]] = {
    "a view of an input": (lambda x, other: ((x @ other.t()).sum(),), 0),
    "a view of a view": (lambda x, other: ((x @ other.t()[:, :1]).sum(),), 0),
    "an output": (lambda x, other: (lambda y: (y.sum(), y))(x.exp()), 2),
    "a view of an output": (lambda x, other: (lambda y: ((y.t() @ x).sum(), y))(x.exp()), 2),
}


@pytest.mark.parametrize("case", SAVED)
def test_a_change_of_a_saved_tensor_raises(case: str) -> None:
    for device in ("cpu", "tpu"):
        changed(device, *SAVED[case])


def test_results_that_share_a_storage_count_writes_together() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y.view(-1), x[0]

    x = torch.ones(2, 3, device="tpu")
    full, flat, row = torch.compile(function)(x)
    flat.mul_(2)
    row.add_(1)
    assert (full._version, x._version) == (flat._version, row._version)
    assert (full.sum().item(), x.tolist()) == (24, [[2, 2, 2], [1, 1, 1]])


def test_a_write_to_a_tensor_of_inference_mode_is_an_error_outside_of_it() -> None:
    double = torch.compile(lambda x: x.mul_(2))
    with torch.inference_mode():
        x = torch.ones(3, device="tpu")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
            double(x)
    with torch.inference_mode():
        assert double(x).tolist() == [2, 2, 2]


def test_sparse_gradients() -> None:
    embedding = torch.nn.Embedding(6, 3, sparse=True).to("tpu")
    rows = torch.tensor([1, 2, 1], device="tpu")
    torch.compile(lambda rows: embedding(rows).sum())(rows).backward()
    gradient = embedding.weight.grad
    assert gradient is not None and gradient.is_sparse
    assert gradient.to_dense().sum(1).tolist() == [0, 6, 3, 0, 0, 0]


def test_tensors_that_wrap_others() -> None:
    pieces = [torch.ones(2, 3), torch.ones(4, 3)]
    nested = torch.nested.nested_tensor(pieces, layout=torch.jagged).to("tpu")
    got: Any = torch.compile(lambda x: x * 2)(nested)
    assert got.values().tolist() == [[2.0] * 3] * 6


def test_grouped_mm_of_float32() -> None:
    a, b = torch.ones(8, 16), torch.ones(2, 16, 24)
    ends = torch.tensor([3, 8], dtype=torch.int32)
    got = torch.compile(lambda a, b, ends: torch._grouped_mm(a, b, offs=ends))(a.to("tpu"), b.to("tpu"), ends.to("tpu"))
    assert torch.equal(got.cpu(), torch._grouped_mm(a, b, offs=ends))
