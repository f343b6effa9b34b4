"""Threads: each records separately, shares inputs, and may read pending values of another one (R6)."""

from __future__ import annotations

import concurrent.futures
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lazytpu
from lazytpu.frontend import tensors
from lazytpu.frontend.recording import miss


def in_thread(function: Callable[[], Any]) -> Any:
    """Return the result of `function` on another thread, or raise its error."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001  (raised again below)
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def test_another_threads_pending_value_is_computed_when_it_is_used() -> None:
    x = torch.arange(4.0).to("tpu")
    pending = x * 3
    assert in_thread(lambda: (pending + x).tolist()) == [0.0, 4.0, 8.0, 12.0]
    produced = in_thread(lambda: x.exp())
    torch.testing.assert_close((produced + pending).cpu(), torch.arange(4.0).exp() + torch.arange(4.0) * 3)


def test_in_place_writes_by_two_threads_in_turn() -> None:
    x = torch.zeros(3).to("tpu")
    for i in range(3):
        x.add_(1)
        in_thread(lambda i=i: x[i].mul_(10))
    assert x.tolist() == [12.0, 21.0, 30.0]


def test_empty_memory_computed_by_another_thread_while_an_op_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was not an input when it was admitted, and must not become one."""
    shared = torch.empty(5, device="tpu")
    begun, cut, infer = threading.Event(), threading.Event(), miss.infer

    def other() -> list[float]:
        kept = shared + 1
        begun.set()
        cut.wait(60)
        lazytpu.mark_step()
        return kept.tolist()

    def interrupted(*args: Any) -> Any:
        if not cut.is_set():
            cut.set()
            results.append(another.result(60))
        return infer(*args)

    results: list[Any] = []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        another = pool.submit(other)
        begun.wait(60)
        monkeypatch.setattr(miss, "infer", interrupted)
        result = torch.cosh(shared)
    assert (result.tolist(), results) == ([1.0] * 5, [[1.0] * 5])


def test_an_input_taken_by_another_thread_while_an_op_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both threads number their inputs: the record of the first must not use the second's slot."""
    w, second_inputs = torch.full((5,), 2.0).to("tpu"), [torch.full((5,), float(i)).to("tpu") for i in range(3)]
    lazytpu.sync()
    infer, taken = miss.infer, []

    def interrupted(*args: Any) -> Any:
        if not taken:
            taken.append(None)
            taken.append(in_thread(lambda: torch.addcmul(second_inputs[0], second_inputs[1], second_inputs[2]) / w))
        return infer(*args)

    monkeypatch.setattr(miss, "infer", interrupted)
    y = torch.hypot(w, second_inputs[1])
    z = torch.hypot(y, w)
    torch.testing.assert_close(z.cpu(), torch.full((5,), 3.0))
    torch.testing.assert_close(taken[1].cpu(), torch.full((5,), 1.0))


def test_backward_on_a_second_thread() -> None:
    w = torch.nn.Parameter(torch.arange(3.0).to("tpu"))
    loss = (w * w).sum()
    in_thread(loss.backward)
    assert w.grad is not None
    assert w.grad.tolist() == [0.0, 2.0, 4.0]


def test_sync_runs_pending_ops_of_other_threads() -> None:
    x = torch.ones(3).to("tpu")
    y = in_thread(lambda: x + 4)
    lazytpu.sync()
    before = lazytpu.metrics()["steps"]
    assert y.tolist() == [5.0] * 3
    assert lazytpu.metrics()["steps"] == before


def test_recorders_end_with_their_threads() -> None:
    value = in_thread(lambda: torch.ones(2).to("tpu") + 1)
    gc.collect()
    before = len(tensors.recorders())
    for _ in range(5):
        in_thread(lambda: (torch.ones(2).to("tpu") * 3).tolist())
    gc.collect()
    assert len(tensors.recorders()) == before
    assert value.tolist() == [2.0, 2.0], "what a dead thread left pending is still computed"


def test_a_failed_op_is_undone_before_another_thread_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads on one recorder, as autograd's are: the rollback is part of the record, under its lock."""
    r = tensors.recorder()
    undone = []
    rollback = type(r).rollback

    def watched(self: Any) -> None:
        undone.append(in_thread(lambda: self.lock.acquire(blocking=False)))
        rollback(self)

    monkeypatch.setattr(type(r), "rollback", watched)
    x = torch.ones(2, 3).to("tpu")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        x @ x
    assert undone == [False]
    monkeypatch.undo()
    assert (x + 1).tolist() == [[2.0] * 3] * 2


def test_many_threads_train_at_once_with_autograd() -> None:
    def train(device: str, seed: int) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        w = torch.randn(4, 4, generator=generator).to(device).requires_grad_()
        x = torch.randn(8, 4, generator=generator).to(device)
        optimizer, losses = torch.optim.SGD([w], lr=0.05), []
        for step in range(6):
            optimizer.zero_grad()
            loss = torch.tanh(x @ w).square().mean()
            loss.backward()
            optimizer.step()
            if step % 2:
                losses.append(loss.item())
        return losses

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda seed: train("tpu", seed), range(8)))
    for seed, losses in enumerate(got):
        torch.testing.assert_close(losses, train("cpu", seed), rtol=1e-4, atol=1e-6)


def test_threads_share_parameters_and_accumulate_gradients() -> None:
    w = torch.nn.Parameter(torch.ones(3).to("tpu"))
    grads = [in_thread(lambda i=i: torch.autograd.grad((w * (i + 1)).sum(), w)[0]) for i in range(3)]
    assert sum(grads).tolist() == [6.0] * 3
