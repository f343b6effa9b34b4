"""Waits of the host are counted by the user's line, with cuts and reasons, and reported by the sync debug mode."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import lazytpu
from lazytpu.engine.cutting import on_host
from lazytpu.frontend import waits as waits_module
from lazytpu.frontend.waits import Wait
from tests.timing import measured

TPU: Any = torch.get_device_module("tpu")


@pytest.fixture(autouse=True)
def nothing_waited() -> Iterator[None]:
    lazytpu.sync()
    lazytpu.reset_metrics()
    yield
    TPU.set_sync_debug_mode(0)


def only() -> Wait:
    (wait,) = lazytpu.waits()
    return wait


def data() -> torch.Tensor:
    return torch.arange(6.0).to("tpu")


WAITS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "x.sum().item()": (lambda x: x.sum().item(), ""),
    "bool(x.sum())": (lambda x: bool(x.sum()), ""),
    "float(x.sum())": (lambda x: float(x.sum()), ""),
    "x.cpu()": (lambda x: x.cpu(), ""),
    'x.to("cpu")': (lambda x: x.to("cpu"), ""),
    "x.tolist()": (lambda x: x.tolist(), ""),
    "str(x)": (lambda x: str(x), "printing a tensor reads its elements"),
    "x.nonzero()": (lambda x: x.nonzero(), "the sizes of `nonzero` depend on values"),
    "x.unique()": (lambda x: x.unique(), "the sizes of `unique2` depend on values"),
    "x[x > 2]": (lambda x: x[x > 2], "the sizes of `x[mask]` depend on values"),
    "torch.equal(x, x + 0)": (lambda x: torch.equal(x, x + 0), ""),
    "lazytpu.sync()": (lambda x: lazytpu.sync(), ""),
    "TPU.synchronize()": (lambda x: TPU.synchronize(), ""),
    "lazytpu.interop.to_jax(x)": (lambda x: lazytpu.interop.to_jax(x), ""),
}


@pytest.mark.parametrize("text", WAITS)
def test_wait_has_its_expression_and_reason(text: str) -> None:
    function, reason = WAITS[text]
    for _ in range(3):
        function(data())
    wait = only()
    assert wait.text == text
    assert wait.reason == reason
    assert wait.count >= 3
    assert wait.place == f"{__file__}:{function.__code__.co_firstlineno}"
    assert 0 <= wait.longest <= wait.seconds


def test_expressions_of_one_line_are_counted_apart() -> None:
    x = data()
    _ = x.sum().item(), x.max().item()
    assert sorted(wait.text for wait in lazytpu.waits()) == ["x.max().item()", "x.sum().item()"]


def test_wait_takes_the_time_of_the_device() -> None:
    def work() -> torch.Tensor:
        x = torch.ones(1200, 1200).to("tpu")
        for _ in range(8):
            x = x @ x / 1200
        return x.sum()

    def measure() -> None:
        lazytpu.reset_metrics()
        total = work()
        lazytpu.mark_step()
        total.item()
        assert lazytpu.waits()
        wait = only()
        assert wait.count == 1 and wait.seconds == wait.longest > 0.005
        assert wait.seconds <= 1e-3 * lazytpu.metrics()["wait_ms"] + 1e-6
        assert not wait.cuts

    work().item()
    measured(measure)


def test_waits_are_forgotten_while_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by another thread that resets the metrics: the read returns its value, and its wait counts."""
    begun = waits_module._begun

    def begun_and_forgotten(*args: Any) -> Wait:
        wait = begun(*args)
        waits_module.forget()
        return wait

    monkeypatch.setattr(waits_module, "_begun", begun_and_forgotten)
    assert data().sum().item() == 15
    assert only().count == 1


def test_read_of_numbers_known_to_the_host_is_no_wait() -> None:
    x = torch.tensor(2.0).to("tpu")
    assert (x.item(), (x + 1).item(), torch.arange(3, device="tpu").tolist()) == (2.0, 3.0, [0, 1, 2])
    assert len(lazytpu.waits()) == 0
    assert str(lazytpu.waits()) == "no waits for the device"


def train(steps: int, inside: Callable[[torch.Tensor], Any], after: Callable[[torch.Tensor], Any]) -> None:
    layer = nn.Linear(6, 6).to("tpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = data()
    for _ in range(steps):
        loss = layer(x).sum()
        loss.backward()
        inside(loss)
        optimizer.step()
        optimizer.zero_grad()
        after(loss)


def test_read_in_a_step_splits_it() -> None:
    train(4, lambda loss: loss.item(), lambda loss: None)
    wait = only()
    assert (wait.count, wait.splits) == (4, 4)
    text = str(lazytpu.waits())
    assert "`loss.item()`: 4 times, waited " in text
    assert "split a training step 4 times: " in text
    assert "read it after optimizer.step()" in text


def test_read_after_a_step_splits_nothing() -> None:
    train(4, lambda loss: None, lambda loss: loss.item())
    wait = only()
    assert (wait.count, wait.splits, wait.cuts.total()) == (4, 0, 0)


def test_test_for_nan_after_a_step_splits_nothing() -> None:
    """Autograd keeps no graph for the result, which is no float."""
    train(4, lambda loss: None, lambda loss: bool(loss.isnan()))
    wait = only()
    assert (wait.count, wait.splits) == (4, 0)
    assert "split" not in str(wait)


def test_read_tells_how_many_ops_ran_and_stayed() -> None:
    x = data()
    y, z = x.exp(), x.sin()
    y.sum().item()
    assert only().cuts == {(False, 2, 1): 1}
    assert "cut once: 2 ops ran, 1 stayed pending" in str(only())
    del z


def test_optimizer_names_the_state_that_it_reads() -> None:
    """The state of an optimizer that computes its steps on the device, loaded by one that reads them."""
    layer = nn.Linear(6, 6).to("tpu")
    fused = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    layer(data()).sum().backward()
    fused.step()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": fused.state_dict()["state"]})
    for _ in range(2):
        layer(data()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    (wait,) = [wait for wait in lazytpu.waits() if wait.reason]
    assert wait.text == "optimizer.step()"
    assert wait.reason.startswith(
        "`AdamW.step()` reads state['step'], which a program of the device computed; keep it "
    )


def test_waits_are_part_of_explain_and_are_reset() -> None:
    data().sum().item()
    assert "waits for the device: 1, " in str(lazytpu.explain())
    assert list(lazytpu.explain().waits) == list(lazytpu.waits())
    lazytpu.reset_metrics()
    assert len(lazytpu.waits()) == len(lazytpu.explain().waits) == 0


def test_waits_of_threads_are_counted_together() -> None:
    x = data()

    def work() -> None:
        for _ in range(50):
            x.sum().item()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert only().count == 200


def test_least_recent_places_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits_module, "LISTED", 3)
    x = data()
    for i in range(5):
        exec(f"x.sum().item() + {i}", {"x": x})
    assert len(lazytpu.waits()) <= 3


# -- set_sync_debug_mode


@pytest.mark.parametrize("mode", [("default", 0), ("warn", 1), ("error", 2), (0, 0), (1, 1), (2, 2), (True, 1)])
def test_sync_debug_mode_is_set_by_name_or_number(mode: tuple[Any, int]) -> None:
    TPU.set_sync_debug_mode(mode[0])
    assert TPU.get_sync_debug_mode() == mode[1]


def test_other_sync_debug_modes_are_refused_as_by_cuda() -> None:
    with pytest.raises(RuntimeError, match="expected one of `default`, `warn`, `error`"):
        TPU.set_sync_debug_mode("on")
    for number in (3, -1):
        with pytest.raises(RuntimeError, match="expected one of 0,1,2"):
            TPU.set_sync_debug_mode(number)
    with pytest.raises(TypeError):
        TPU.set_sync_debug_mode(1.0)
    assert TPU.get_sync_debug_mode() == 0


def test_warnings_are_at_the_line_of_the_user() -> None:
    x = data()
    TPU.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        for _ in range(2):
            x.sum().item()
    assert [str(warning.message) for warning in raised] == [
        "called a synchronizing TPU operation: `x.sum().item()` waits for the device"
    ] * 2
    assert {warning.filename for warning in raised} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.exp().relu_()
        lazytpu.sync()
        torch.tensor(2.0).to("tpu").item()
        with pytest.raises(UserWarning, match="synchronizing"):
            x.cpu()


def test_error_leaves_the_ops_pending() -> None:
    x = data()
    y = x.exp()
    steps = lazytpu.metrics()["steps"]
    TPU.set_sync_debug_mode("error")
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"called a synchronizing TPU operation: `y.tolist\(\)` waits"):
            y.tolist()
    assert lazytpu.metrics()["steps"] == steps
    lazytpu.sync()
    with pytest.raises(RuntimeError, match="synchronizing"):
        torch.Stream(device="tpu").synchronize()
    TPU.set_sync_debug_mode("default")
    torch.testing.assert_close(y.cpu(), torch.arange(6.0).exp())


def test_host_that_is_far_ahead_waits() -> None:
    x = torch.ones(300, 300).to("tpu")
    for _ in range(40):
        x = x @ x / 300
        lazytpu.mark_step()  # behind
    (wait,) = lazytpu.waits()
    assert "more than 16 programs ahead of the device" in wait.reason
    assert wait.text == "lazytpu.mark_step()"
    assert not wait.cuts


def test_host_run_waits_for_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_host, "BESIDE", 0)
    x = torch.ones(4).to("tpu")
    big = torch.ones(900, 900).to("tpu")
    lazytpu.sync()
    lazytpu.reset_metrics()
    for _ in range(3):
        big = big @ big / 900
    corner = big[0, :4].clone()
    lazytpu.mark_step()
    before = lazytpu.metrics()["on_host"]
    y = corner + x
    lazytpu.mark_step()
    assert lazytpu.metrics()["on_host"] == before + 1
    assert only().reason == "1 ops ran on the host, which read their inputs"
    assert y.tolist() == [2.0] * 4
    TPU.set_sync_debug_mode("error")
    (corner - x).abs()
    lazytpu.mark_step()  # no read of the script


def test_evaluation_with_a_graph_is_pointed_to_no_grad() -> None:
    model = nn.Linear(3, 3).to("tpu")
    model(torch.ones(2, 3).to("tpu")).sum().item()
    assert only().splits == 1
    assert "torch.no_grad()" in str(only())
