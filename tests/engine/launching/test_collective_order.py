"""Collectives that several threads launch run one after the other."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lazytpu.engine.launching.collective_order import CollectiveOrder
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.xla import client


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The statuses that launches wait for."""
    awaited: list[Any] = []
    monkeypatch.setattr(client, "wait", lambda arrays: awaited.extend(arrays))
    return awaited


def on_a_thread(order: CollectiveOrder, status: str) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(order.run(lambda: ("results", status))))
    thread.start()
    thread.join()
    return results[0]


def test_another_threads_collective_is_awaited(waits: list[Any]) -> None:
    order = CollectiveOrder()
    assert on_a_thread(order, "first") == ("results", "first")
    assert waits == []
    order.run(lambda: (None, "second"))
    assert waits == ["first"]
    order.run(lambda: (None, "third"))
    assert waits == ["first"]
    on_a_thread(order, "fourth")
    assert waits == ["first", "third"]


def test_a_tpu_keeps_the_order_of_launches(waits: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "platform", lambda: "tpu")
    order = CollectiveOrder()
    on_a_thread(order, "first")
    order.run(lambda: (None, "second"))
    assert waits == []


def test_a_failed_collective_does_not_fail_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arrays: Any) -> None:
        raise RunError("a program", "a peer has gone")

    monkeypatch.setattr(client, "wait", fail)
    order = CollectiveOrder()
    on_a_thread(order, "first")
    assert order.run(lambda: ("results", "second")) == ("results", "second")
