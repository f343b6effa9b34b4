"""The relay between XLA's client and the coordination service."""

from __future__ import annotations

import socket

from lazytpu.runtime.jobs.relay import Relay


def _connect(relay: Relay) -> socket.socket:
    host, port = relay.address.split(":")
    return socket.create_connection((host, int(port)), timeout=5)


def test_missing_service_closes_and_lost_service_does_not():
    service = socket.create_server(("127.0.0.1", 0))
    relay = Relay("127.0.0.1", str(service.getsockname()[1]))
    address = service.getsockname()
    service.close()
    with _connect(relay) as client:
        assert client.recv(1) == b""
    with socket.create_server(address) as service, _connect(relay) as client, service.accept()[0] as served:
        client.sendall(b"a")
        assert served.recv(1) == b"a"
    with _connect(relay) as client:
        client.settimeout(0.2)
        try:
            assert client.recv(1), "it was closed"
        except TimeoutError:
            return
