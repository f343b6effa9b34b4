"""Nested tensors in the jagged layout, padded and back, with their gradients."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

aten = torch.ops.aten
LENGTHS = ((3, 5, 2), (4, 1, 7), (3, 0, 2))


def of_rows(lengths: tuple[int, ...], device: str) -> list[torch.Tensor]:
    """Convert rows to a padded tensor, shorter and longer, and back."""
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(device)
    rows = torch.arange(2.0 * sum(lengths)).reshape(-1, 2).to(device)
    most = max(lengths)
    padded = [aten._jagged_to_padded_dense_forward(rows, [offsets], [n], -1.0) for n in (most, most - 1, most + 2)]
    totals = (None, sum(lengths))
    return [*padded, *(aten._padded_dense_to_jagged_forward(padded[0], [offsets], total) for total in totals)]


def of_nested(lengths: tuple[int, ...], device: str) -> list[torch.Tensor]:
    """Pad a nested tensor; compute its softmax over the ragged dimension, and its gradient."""
    pieces = [torch.arange(2.0 * n).reshape(n, 2).to(device) for n in lengths]
    nested = torch.nested.nested_tensor(pieces, layout=torch.jagged, requires_grad=True, device=device)
    padded = nested.sin().to_padded_tensor(0.5)
    padded.square().sum().backward()
    assert nested.grad is not None
    return [padded.detach(), torch.softmax(nested.detach(), 1).values(), nested.grad.values()]


@pytest.mark.parametrize("make", [of_rows, of_nested])
def test_padded_and_back(make) -> None:
    for lengths in LENGTHS:
        assert_close([t.cpu() for t in make(lengths, "tpu")], make(lengths, "cpu"))


def test_wrong_lengths() -> None:
    dense, offsets = torch.zeros(2, 3, 1).to("tpu"), torch.tensor([0, 2, 4]).to("tpu")
    with pytest.raises(RuntimeError, match="does not match"):
        aten._padded_dense_to_jagged_forward(dense, [offsets], 5).cpu()
    with pytest.raises(RuntimeError, match="single jagged dim"):
        aten._padded_dense_to_jagged_forward(dense, [offsets, offsets], 4)


@pytest.mark.parametrize("grad", [False, True])
def test_strided_ones_are_refused(grad: bool) -> None:
    rows = [torch.ones(2, 3, device="tpu", requires_grad=grad), torch.ones(1, 3, device="tpu", requires_grad=grad)]
    with pytest.raises(NotImplementedError, match="strided nested"):
        torch.nested.as_nested_tensor(rows)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_ones_are_refused_where_they_are_made() -> None:
    """Their parts are on the CPU, whose kernel makes them."""
    for parts in ([torch.ones(2), torch.ones(3)], [[1.0, 2.0], [3.0]]):
        with pytest.raises(NotImplementedError, match="strided nested"):
            torch.nested.nested_tensor(parts, device="tpu")
    assert torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).device.type == "cpu"
    assert torch.nested.nested_tensor([torch.ones(2)], device="tpu", layout=torch.jagged).is_nested
