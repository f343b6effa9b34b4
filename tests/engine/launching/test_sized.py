"""A cut by a program for many sizes costs the host what one by an exact program does."""

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
    monkeypatch.setattr(padded, "POISON", False)  # which is a run of its own
    lazytpu.sync()
    with lazytpu.options(background_compile=0.0, on_host=False):
        yield
        lazytpu.sync()


def calls_of(run: Callable[[], object]) -> int:
    """How many Python functions are called."""
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
    """The calls of a cut of a step that updates weights and computes with a batch of this length, once it is known."""
    for _ in range(3):
        batch = torch.ones(4, length).to("tpu")
        for weight in weights:
            weight.add_(1)
        doubled = batch * 2
        calls = calls_of(lazytpu.mark_step)
        assert doubled.sum().item() == 8 * length
    return calls


def test_what_is_not_padded_costs_no_call_more_than_in_an_exact_program() -> None:
    weights = [torch.zeros(3, 3).to("tpu") for _ in range(PLAIN)]
    with lazytpu.options(buckets="auto"):
        for length in SHOWN:
            cut(length, weights)
        sized = cut(LATER, weights)
    assert "one program for sizes" in "\n".join(lazytpu.explain()[-1].notes)
    with lazytpu.options(buckets="off"):
        exact = cut(LATER, weights)
    assert exact < 10 * PLAIN, "nothing is made"
    assert sized <= exact + PLAIN, "some for the batch and its double, none for a weight"
