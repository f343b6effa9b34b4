"""Fused mode cuts before a step; lazy mode does not, nor does fused mode after a read within an iteration."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import lazytpu


def causes(work: Callable[[], object]) -> list[tuple[str, int]]:
    """Return the causes of the cuts by `work` and by a final mark, with the number of ops that each ran."""
    lazytpu.sync()
    before = len(lazytpu.explain_cut(64))
    assert before < 60, "a recorder keeps only the last cuts"
    kept = work()
    lazytpu.mark_step()
    del kept
    return [(cut.cause, cut.ran) for cut in lazytpu.explain_cut(64)[before:]]


@pytest.fixture(autouse=True)
def _few_cuts_so_far() -> None:
    lazytpu.sync()
    from lazytpu.frontend.tensors import recorder

    recorder().cuts.clear()


class Classifier(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * 2 + 1)


def prepared(batch: torch.Tensor, ways: int) -> torch.Tensor:
    batch = batch / 255
    for _ in range(ways):
        batch = batch.clamp(0.1, 0.9)
    return batch


def test_lazy_mode_never_cuts_before_a_step() -> None:
    net = Classifier(9).to("tpu")
    raw = torch.ones(3, 9, device="tpu")

    def work() -> torch.Tensor:
        return net(prepared(raw, 1))

    for _ in range(2):
        assert [cause for cause, _ in causes(work)] == ["step begins", "mark_step()"]
        with lazytpu.mode("lazy"):
            assert [cause for cause, _ in causes(work)] == ["mark_step()"]


def test_ops_left_by_a_read_run_with_the_next_step() -> None:
    net = Classifier(10).to("tpu").eval()
    total = torch.zeros((), device="tpu")

    @torch.no_grad()
    def work() -> None:
        for _ in range(3):
            out = net(torch.ones(3, 10, device="tpu"))
            total.add_(out.sum())
            out.mean().item()

    cuts = causes(work)
    assert "step begins" not in [cause for cause, _ in cuts[1:]], cuts
