"""A cut by a program for many sizes has the host cost of a cut by an exact program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.runtime.buffers import padded

SHOWN, LATER, PLAIN = (70, 80, 90), 100, 20


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(padded, "POISON", False)  # poisoning is another run
    lazytpu.sync()
    with lazytpu.options(background_compile=0.0, on_host=False):
        yield
        lazytpu.sync()


def calls_of(run: Callable[[], object]) -> int:
    """Count the Python function calls of `run`."""
    count = 0

    def note(frame: Any, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def cut(length: int, weights: list[torch.Tensor]) -> int:
    """Count the calls of a repeated cut, whose step updates weights and reads a batch of this length."""
    for _ in range(3):
        batch = torch.ones(4, length).to("tpu")
        for weight in weights:
            weight.add_(1)
        doubled = batch * 2
        calls = calls_of(lazytpu.mark_step)
        assert doubled.sum().item() == 8 * length
    return calls


def test_unpadded_values_cost_no_extra_calls() -> None:
    weights = [torch.zeros(3, 3).to("tpu") for _ in range(PLAIN)]
    with lazytpu.options(buckets="auto"):
        for length in SHOWN:
            cut(length, weights)
        sized = cut(LATER, weights)
    assert "one program for sizes" in "\n".join(lazytpu.explain()[-1].notes)
    with lazytpu.options(buckets="off"):
        exact = cut(LATER, weights)
    assert exact < 10 * PLAIN, "a repeated cut prepares no program"
    assert sized <= exact + PLAIN, "more calls for the batch and its double, no more for a weight"
