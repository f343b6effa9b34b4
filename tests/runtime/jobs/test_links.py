"""The connections of a process after they are cut."""

from __future__ import annotations

import socket

import pytest

from lazytpu.runtime.jobs.links import Links


def test_cut_ends_receives_here_and_keeps_sends_of_the_peer():
    """gloo would wait forever in a process that sends to a socket that was closed here."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        earlier = socket.create_connection(server.getsockname())
        links = Links()
        connecting = socket.create_connection(server.getsockname())
        links.complete()
        later = socket.create_connection(server.getsockname())
        theirs = [server.accept()[0] for _ in range(3)]
    accepted = theirs[1]
    links.cut()
    assert connecting.recv(1) == b""
    connecting.close()  # as gloo does at this point
    for _ in range(2):  # the first one succeeds in any case
        accepted.sendall(b"x")
    for connection in (earlier, later, *theirs):
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
    links.close()
    accepted.setblocking(True)
    with pytest.raises(ConnectionResetError):  # since the sent data was never read
        accepted.recv(1)
    for connection in (earlier, later, *theirs):
        connection.close()
