"""The count of true elements of a mask is read once, and again after the mask has changed."""

from __future__ import annotations

import pytest
import torch

import lazytpu
from lazytpu.rehearsal.rehearse import rehearse

MASK = [True, False, True, True]


def reads() -> int:
    """Return how often recorded ops ran: in lazy mode, once for each read."""
    return int(lazytpu.metrics()["steps"])


def test_ops_at_one_mask_and_their_gradients_read_one_count() -> None:
    results: list[torch.Tensor] = []
    for device in ("cpu", "tpu"):
        x = torch.arange(8.0).reshape(4, 2).to(device).requires_grad_()
        mask = torch.tensor(MASK).to(device)
        y = torch.zeros(4, 2, device=device)
        with lazytpu.mode("lazy"):
            before = reads()
            kept = mask & (x.detach()[:, 0] < 6)
            y[kept] = y[kept] + x[kept].exp()
            y.square().sum().backward()
            assert reads() - before == (device == "tpu")
        assert x.grad is not None
        results += [y.detach().cpu(), x.grad.cpu()]
    torch.testing.assert_close(results[2:], results[:2])


def test_changed_mask_is_counted_again() -> None:
    mask = torch.tensor(MASK).to("tpu")
    assert mask.nonzero().flatten().tolist() == [0, 2, 3]
    mask[0] = False
    assert mask.nonzero().flatten().tolist() == [2, 3]
    mask.logical_not_()
    assert mask.nonzero().flatten().tolist() == [0, 1]


def test_views_of_a_mask_have_counts_of_their_own() -> None:
    mask = torch.tensor(MASK).to("tpu")
    for _ in range(2):
        assert [len(view.nonzero()) for view in (mask, mask[:2], mask[2:], mask.view(2, 2)[:, 0])] == [3, 1, 2, 2]
        assert len(mask.view(torch.uint8)[1:].nonzero()) == 2


@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_count_of_a_rehearsal_is_forgotten(mode: str) -> None:
    with lazytpu.mode(mode):
        mask = torch.tensor(MASK).to("tpu")

        def step() -> int:
            mask.logical_not_()
            return len(mask.nonzero())

        rehearse(step)
        assert mask.nonzero().flatten().tolist() == [0, 2, 3]
        assert step() == 1
