"""Threads: each records for itself, shares inputs, and may read what another has pending (R6)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.frontend import kernels


def in_thread(function: Callable[[], Any]) -> Any:
    """What `function` returns, or raises, on another thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function())
        except BaseException as error:  # noqa: BLE001  (raised again below)
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def test_another_threads_pending_value_is_computed_when_it_is_used() -> None:
    x = torch.arange(4.0).to("tpu")
    pending = x * 3
    assert in_thread(lambda: (pending + x).tolist()) == [0.0, 4.0, 8.0, 12.0]
    made = in_thread(lambda: x.exp())
    torch.testing.assert_close((made + pending).cpu(), torch.arange(4.0).exp() + torch.arange(4.0) * 3)


def test_in_place_writes_by_two_threads_in_turn() -> None:
    x = torch.zeros(3).to("tpu")
    for i in range(3):
        x.add_(1)
        in_thread(lambda i=i: x[i].mul_(10))
    assert x.tolist() == [12.0, 21.0, 30.0]


def test_an_input_taken_by_another_thread_while_an_op_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both number their inputs themselves: the record of the first must not name the second's slot."""
    w, other = torch.full((5,), 2.0).to("tpu"), [torch.full((5,), float(i)).to("tpu") for i in range(3)]
    lazytpu.sync()
    infer, taken = kernels.infer, []

    def interrupted(*args: Any) -> Any:
        if not taken:
            taken.append(None)
            taken.append(in_thread(lambda: torch.addcmul(other[0], other[1], other[2]) / w))
        return infer(*args)

    monkeypatch.setattr(kernels, "infer", interrupted)
    y = torch.hypot(w, other[1])
    z = torch.hypot(y, w)
    torch.testing.assert_close(z.cpu(), torch.full((5,), 3.0))
    torch.testing.assert_close(taken[1].cpu(), torch.full((5,), 1.0))


def test_backward_on_a_second_thread() -> None:
    w = torch.nn.Parameter(torch.arange(3.0).to("tpu"))
    loss = (w * w).sum()
    in_thread(loss.backward)
    assert w.grad is not None
    assert w.grad.tolist() == [0.0, 2.0, 4.0]


def test_sync_runs_what_other_threads_recorded() -> None:
    x = torch.ones(3).to("tpu")
    y = in_thread(lambda: x + 4)
    lazytpu.sync()
    before = lazytpu.metrics()["steps"]
    assert y.tolist() == [5.0] * 3
    assert lazytpu.metrics()["steps"] == before
