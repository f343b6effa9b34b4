"""The messages of the helper process, without the process."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from lazytpu.runtime.compiling import child, wire


@pytest.mark.parametrize("payload", [b"", b"module", bytes(300_000)])
def test_messages_arrive_whole(payload: bytes):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=wire.send, args=(ours, {"name": "größer", "limit": float("inf")}, payload))
        sender.start()
        assert wire.receive(theirs) == ({"name": "größer", "limit": float("inf")}, payload)
        sender.join()


@pytest.mark.parametrize("cut", [0, 3, 8, 20])
def test_half_a_message_is_none(cut: int):
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            wire.send(ours, {"name": "step"}, b"module")
        message = theirs.recv(1000)
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(message[:cut])
        assert wire.receive(theirs) is None


def test_sending_to_an_ended_process_is_an_error():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(OSError):
        wire.send(ours, {})


def test_idle_child_offers_to_end_and_takes_the_last_limit():
    ours, theirs = socket.socketpair()
    requests: list[Any] = []
    worker: Any = SimpleNamespace(idle=False, requests=SimpleNamespace(put=requests.append))
    limits: list[float] = []
    serving = threading.Thread(target=lambda: limits.append(child.serve(theirs, worker, idle=0.02)))
    with ours, theirs:
        serving.start()
        wire.send(ours, {"after_exit": 60.0, "name": "step"}, b"module")
        ours.settimeout(0.2)
        with pytest.raises(TimeoutError):
            wire.receive(ours)  # it has work
        worker.idle = True
        ours.settimeout(60)
        assert wire.receive(ours) == ({"outcome": "idle"}, b"")
        wire.send(ours, {"after_exit": 7.0})
        ours.shutdown(socket.SHUT_RDWR)
        serving.join(60)
    assert limits == [7.0]
    assert requests == [({"after_exit": 60.0, "name": "step"}, b"module")]
