"""Traces that are equal but for the way they were recorded: one program, listed once, with the lines of each trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import lazytpu
from lazytpu.passes import registered
from lazytpu.passes.cse import CsePass
from tests.engine.recompiles.explained import explanation_of, on_tpu

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


def test_check_behind_a_read_names_its_own_line_and_shares_the_program() -> None:
    x, rows, wrong = torch.ones(4, 3).to("tpu"), torch.tensor([1, 2]).to("tpu"), torch.tensor([1, 7]).to("tpu")
    with lazytpu.options(on_host=False):
        (x[rows] * 2).cpu()
        compiles = lazytpu.metrics()["compiles"]
        pending = x.sin()

        def another() -> None:
            (x[wrong] * 2).cpu()

        with pytest.raises(IndexError, match=rf"py:{another.__code__.co_firstlineno + 1}\)"):
            another()
    assert lazytpu.metrics()["compiles"] == compiles
    del pending


def _within_another_trace(step: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Compute `step` as a part of a longer trace."""
    x = on_tpu(6, 3)
    unread = x.sin()
    step(x).cpu()
    lazytpu.mark_step()
    assert unread.tolist() == x.cpu().sin().tolist()


def test_same_ops_within_another_trace_are_the_same_program() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.erfc().mul(3).cos()

    explanation_of(step, on_tpu(6, 3))
    before, graphs = lazytpu.explain(), len(lazytpu.graphs())
    _within_another_trace(step)
    explanations = lazytpu.explain()[len(before) :]
    assert [explanation.records for explanation in explanations] == [1]  # sin, left by the read
    assert len(lazytpu.graphs()) == graphs + 1


def test_same_ops_within_another_trace_are_explained_if_rules_of_others_take_part() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.erfc().mul(3).tanh()

    with registered(ForeignPass, phase="final"):
        full = explanation_of(step, on_tpu(6, 3))
        _within_another_trace(step)
    explanation = next(e for e in lazytpu.explain() if e.number > full.number and e.records == full.records)
    assert (explanation.hint, explanation.nearest, explanation.source) == ("same-program", full.number, "shared")


class ForeignPass(CsePass):
    """A pass from outside lazytpu: traces that it rewrites are not in the index."""

    name = "mine"
