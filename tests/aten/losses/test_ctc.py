"""The CTC loss and its gradient against torch's CPU."""

from __future__ import annotations

from math import inf

import pytest
import torch

from tests.aten.deferred import check
from tests.aten.harness import run

A = torch.ops.aten


def log_probs(steps: int, rows: int, classes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(steps)
    return torch.randn(steps, rows, classes).log_softmax(-1).to(dtype)


TARGETS = torch.tensor([[1, 2, 2], [3, 3, 1]])


@pytest.mark.parametrize(("dtype", "blank"), [(torch.float32, 0), (torch.float64, 4)])
def test_whole_rows(dtype: torch.dtype, blank: int) -> None:
    """Every state of every step is defined, so that alphas can be compared."""
    x, steps, lengths = log_probs(7, 2, 5, dtype), torch.tensor([7, 7]), torch.tensor([3, 3])
    for targets in (TARGETS, TARGETS.int()):
        check(A._ctc_loss.Tensor, x, targets, steps, lengths, blank)
    loss, alpha = A._ctc_loss.Tensor(x, TARGETS, steps, lengths, blank)
    grad = torch.tensor([0.5, -2.0], dtype=dtype)
    check(A._ctc_loss_backward.Tensor, grad, x, TARGETS, steps, lengths, loss, alpha, blank)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_short_and_empty_rows(zero_infinity: bool) -> None:
    """An impossible alignment costs infinity; its gradient is NaN, or 0 with zero_infinity."""
    x = log_probs(4, 6, 3)
    x[0, 0, 1] = -inf
    targets = torch.tensor([[1, 2, 1], [1, 0, 0], [1, 1, 2], [9, -1, 7], [2, 1, 0], [1, 2, 2]])
    steps, lengths = torch.tensor([4, 3, 3, 2, 0, 0]), torch.tensor([3, 1, 2, 0, 1, 0])
    loss, alpha = A._ctc_loss.Tensor(x, targets.clamp(0, 2), steps, lengths)
    got = run(A._ctc_loss.Tensor, x, targets, steps, lengths, outs=[loss, alpha])
    torch.testing.assert_close(got[0], loss)
    assert loss[4] == inf and loss[5] == 0
    arguments = (torch.arange(6.0) + 1, x, targets.clamp(0, 2), steps, lengths, loss)
    expected = A._ctc_loss_backward.Tensor(*arguments, alpha, 0, zero_infinity)
    (grad,) = run(A._ctc_loss_backward.Tensor, *arguments, got[1], 0, zero_infinity, outs=[expected])
    torch.testing.assert_close(grad, expected, equal_nan=True)


def test_no_labels() -> None:
    nothing, steps = torch.zeros(2, 0, dtype=torch.int64), torch.tensor([3, 3])
    x, lengths = log_probs(3, 2, 4), torch.tensor([0, 0])
    check(A._ctc_loss.Tensor, x, nothing, steps, lengths)
    loss, alpha = A._ctc_loss.Tensor(x, nothing, steps, lengths)
    check(A._ctc_loss_backward.Tensor, torch.ones(2), x, nothing, steps, lengths, loss, alpha, 0)


@pytest.mark.parametrize(
    ("targets", "steps", "lengths"),
    [([[5, 1]], [3], [2]), ([[1, -1]], [3], [2]), ([[1, 2]], [4], [2]), ([[1, 2]], [3], [3]), ([[1, 2]], [-1], [2])],
)
def test_out_of_range_labels_and_lengths(targets: list[list[int]], steps: list[int], lengths: list[int]) -> None:
    x = log_probs(3, 1, 5)
    outs = [torch.empty(1), torch.empty(1, 3, 5)]
    with pytest.raises(IndexError):
        run(A._ctc_loss.Tensor, x, *map(torch.tensor, (targets, steps, lengths)), outs=outs)
