"""Collectives that several threads launch run one after the other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from lazytpu.engine.launching.collective_order import CollectiveOrder, Members
from lazytpu.runtime.errors import RunError
from lazytpu.runtime.xla import client

ALL = (0, 1, 2, 3)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The statuses that launches wait for."""
    awaited: list[Any] = []
    monkeypatch.setattr(client, "wait", lambda arrays: awaited.extend(arrays))
    return awaited


def on_a_thread(order: CollectiveOrder, status: str, groups: Sequence[Members] = (ALL,)) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(order.run(groups, lambda: ("results", status))))
    thread.start()
    thread.join()
    return results[0]


def test_another_threads_collective_is_awaited(waits: list[Any]) -> None:
    order = CollectiveOrder()
    assert on_a_thread(order, "first") == ("results", "first")
    assert waits == []
    order.run([ALL], lambda: (None, "second"))
    assert waits == ["first"]
    order.run([ALL], lambda: (None, "third"))
    assert waits == ["first"]
    on_a_thread(order, "fourth")
    assert waits == ["first", "third"]


def test_collectives_of_other_members_are_not_awaited(waits: list[Any]) -> None:
    """Two ranks may launch them in different orders, and would wait for each other."""
    order = CollectiveOrder()
    on_a_thread(order, "of some", [(0, 1)])
    order.run([ALL], lambda: (None, "of all"))
    assert waits == []
    on_a_thread(order, "of both", [ALL, (0, 1), ALL])
    assert waits == ["of some", "of all"]
    order.run([(0, 1)], lambda: (None, "of some"))
    assert waits == ["of some", "of all", "of both"]


def test_a_tpu_keeps_the_order_of_launches(waits: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "platform", lambda: "tpu")
    order = CollectiveOrder()
    on_a_thread(order, "first")
    order.run([ALL], lambda: (None, "second"))
    assert waits == []


def test_a_failed_collective_does_not_fail_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arrays: Any) -> None:
        raise RunError("a program", "a peer has gone")

    monkeypatch.setattr(client, "wait", fail)
    order = CollectiveOrder()
    on_a_thread(order, "first")
    assert order.run([ALL], lambda: ("results", "second")) == ("results", "second")
