"""A relay between XLA's client and the coordination service of a job, so that the end of the service ends no process.

XLA's client aborts its process as soon as the service closes the connection (jaxlib 0.10.2: its callback for that
cannot be a Python function). Therefore it connects to a relay in its own process, which forwards bytes in both
directions. When the service is gone, the relay keeps the client's connection open and silent.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from contextlib import suppress

CHUNK = 1 << 16  # bytes


class Relay:
    """Forward connections to a port of the loopback interface to `host`:`port`, until the process ends."""

    def __init__(self, host: str, port: str):
        self._target = host, int(port)
        self._selector = selectors.DefaultSelector()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._kept: list[socket.socket] = []  # client connections, including those whose service side is closed
        self._reached = False  # whether the service ever accepted a connection
        os.register_at_fork(after_in_child=self._let_go)
        threading.Thread(target=self._serve, name="lazytpu relay", daemon=True).start()

    @property
    def address(self) -> str:
        """The address to connect to."""
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if connection is self._listening:
                    self._accept()
                elif connection in self._others:  # otherwise the other end was closed just now
                    self._pass_on(connection)

    def _accept(self) -> None:
        with suppress(OSError):  # the client has gone meanwhile
            client = self._listening.accept()[0]
            self._kept.append(client)
            try:
                service = socket.create_connection(self._target, timeout=10)
            except OSError:
                if not self._reached:  # the client is still trying to join, and has to see the failure
                    self._kept.remove(client)
                    client.close()
                return
            self._reached = True
            service.settimeout(None)
            for source, target in ((client, service), (service, client)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._others[source] = target
                self._selector.register(source, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        try:
            data = source.recv(CHUNK)
            if data:
                self._others[source].sendall(data)
                return
        except OSError:
            pass  # treat it as closed
        target = self._others[source]
        for end in (source, target):
            self._selector.unregister(end)
            del self._others[end]
            if end not in self._kept:
                end.close()  # the service side; the client would abort if its side were closed
        if source in self._kept:  # the client has closed its connection
            self._kept.remove(source)
            source.close()

    def _let_go(self) -> None:
        """Close the parent's connections in a forked child."""
        for connection in (self._listening, *self._kept, *self._others):
            if connection.fileno() >= 0:
                os.close(connection.detach())
