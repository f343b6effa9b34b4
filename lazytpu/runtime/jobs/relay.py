"""What stands between XLA's client and the coordination service of a job, so that the end of the service ends nothing.

XLA's client ends its process, by an abort, as soon as the service closes the connection (jaxlib 0.10.2: its callback
for that cannot be a Python function). It connects to a relay in its own process instead, which passes bytes on in both
directions. When the service is gone, the relay keeps the client's connection open and says nothing more.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from contextlib import suppress

CHUNK = 1 << 16  # bytes


class Relay:
    """Passes on what comes to a port of the loopback, to `host`:`port`. Runs until the process ends."""

    def __init__(self, host: str, port: str):
        self._target = host, int(port)
        self._selector = selectors.DefaultSelector()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._others: dict[socket.socket, socket.socket] = {}
        self._kept: list[socket.socket] = []  # connections of the client, also those whose other ends are gone
        self._reached = False  # whether the service was there once
        os.register_at_fork(after_in_child=self._let_go)
        threading.Thread(target=self._serve, name="lazytpu relay", daemon=True).start()

    @property
    def address(self) -> str:
        """Where to connect to."""
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one is self._listening:
                    self._accept()
                elif one in self._others:  # else the other end has just been closed
                    self._pass_on(one)

    def _accept(self) -> None:
        with suppress(OSError):  # the client has gone meanwhile
            client = self._listening.accept()[0]
            self._kept.append(client)
            try:
                service = socket.create_connection(self._target, timeout=10)
            except OSError:
                if not self._reached:  # then the client only tries to join, and has to know
                    self._kept.remove(client)
                    client.close()
                return
            self._reached = True
            service.settimeout(None)
            for one, other in ((client, service), (service, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._others[one] = other
                self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket) -> None:
        try:
            data = one.recv(CHUNK)
            if data:
                self._others[one].sendall(data)
                return
        except OSError:
            pass  # as if it had been closed
        other = self._others[one]
        for each in (one, other):
            self._selector.unregister(each)
            del self._others[each]
            if each not in self._kept:
                each.close()  # that of the service; the client would abort if its own were closed
        if one in self._kept:  # it has closed its connection itself
            self._kept.remove(one)
            one.close()

    def _let_go(self) -> None:
        """In a forked child: the connections are its parent's."""
        for each in (self._listening, *self._kept, *self._others):
            if each.fileno() >= 0:
                os.close(each.detach())
