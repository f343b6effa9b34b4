"""What the connections of a process do when they are cut."""

from __future__ import annotations

import socket

import pytest

from lazytpu.runtime.jobs.links import Links


def test_what_waits_here_ends_and_the_other_process_can_still_send():
    """gloo would wait for ever in a process that sends to a socket that was closed here."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        earlier = socket.create_connection(server.getsockname())
        links = Links()
        here = socket.create_connection(server.getsockname())
        links.complete()
        later = socket.create_connection(server.getsockname())
        theirs = [server.accept()[0] for _ in range(3)]
    there = theirs[1]
    links.cut()
    assert here.recv(1) == b""
    here.close()  # as gloo does then
    for _ in range(2):  # the first one succeeds in any case
        there.sendall(b"x")
    for each in (earlier, later, *theirs):
        each.setblocking(False)
        with pytest.raises(BlockingIOError):
            each.recv(1)
    links.close()
    there.setblocking(True)
    with pytest.raises(ConnectionResetError):  # since nobody has read what was sent
        there.recv(1)
    for each in (earlier, later, *theirs):
        each.close()
