"""Traces that are equal but for the way they were recorded: one program, listed once, with the lines of each trace."""

from __future__ import annotations

import pytest
import torch

import lazytpu

pytestmark = pytest.mark.usefixtures("fresh_traces")


def test_parts_that_reads_leave_outside_and_within_a_step_are_one_program() -> None:
    """A part within a step is a state of its own, since the cuts that follow depend on the step."""
    weight = torch.linspace(-1, 1, 5).to("tpu").requires_grad_()

    def run(x: torch.Tensor) -> torch.Tensor:
        left, read = x.detach().cosh().mul(3), x.sum()
        read.item()
        return left.cpu()

    run(torch.linspace(-1, 1, 5).to("tpu"))
    before = len(lazytpu.explain())
    assert torch.allclose(run(weight), weight.detach().cpu().cosh() * 3)
    assert [e.records for e in lazytpu.explain()[before:]] == []


def test_failed_check_names_the_line_of_its_own_trace() -> None:
    """Lazy and fused mode have states of their own."""
    x, rows, wrong = torch.ones(4, 3).to("tpu"), torch.tensor([1, 2]).to("tpu"), torch.tensor([1, 7]).to("tpu")
    with lazytpu.options(on_host=False):
        with lazytpu.mode("lazy"):
            (x[rows] * 2).cpu()
        before = len(lazytpu.explain())

        def another() -> None:
            (x[wrong] * 2).cpu()

        with pytest.raises(IndexError, match=rf"py:{another.__code__.co_firstlineno + 1}\)"):
            another()
    assert len(lazytpu.explain()) == before


def test_program_of_an_equal_trace_is_compared_with_later_traces() -> None:
    """Each line of a script is explained by the earlier programs of that line."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return x.asinh().mul(3).sum()

    def again(x: torch.Tensor) -> torch.Tensor:
        return x.asinh().mul(3).sum()

    with lazytpu.options(on_host=False, buckets="off"):
        with lazytpu.mode("lazy"):
            run(torch.ones(5).to("tpu")).cpu()
        before = len(lazytpu.explain())
        again(torch.ones(5).to("tpu")).cpu()
        assert len(lazytpu.explain()) == before
        again(torch.ones(7).to("tpu")).cpu()
    last = lazytpu.explain()[-1]
    assert (last.code, last.nearest) == ("shape", lazytpu.explain()[before - 1].number)
