"""The TPU slice of a machine, from its variables and from a metadata server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from lazytpu.runtime.xla import slices
from lazytpu.runtime.xla.slices import Slice

ATTRIBUTES = {
    "worker-network-endpoints": "a:1:10.0.0.1,b:2:10.0.0.2",
    "tpu-env": "TYPE: 'V4'\nTPU_CHIPS_PER_PROCESS_BOUNDS: '2,2,1'\nTPU_PROCESS_BOUNDS: '1,1,2'\nZONE: 'z'\n",
}


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        attribute = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
        is_available = self.headers["Metadata-Flavor"] == "Google" and attribute in ATTRIBUTES
        self.send_response(200 if is_available else 404)
        self.end_headers()
        self.wfile.write(ATTRIBUTES.get(attribute, "no such attribute").encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def metadata() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TPU_WORKER_HOSTNAMES", "TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")


def test_machine_without_information():
    assert slices.here() == Slice(1, None)


def test_variables_describe_the_slice(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "host-0,host-1,host-2,host-3")
    assert slices.here() == Slice(4, None)
    monkeypatch.setenv("TPU_HOST_BOUNDS", "2,2,1")
    monkeypatch.setenv("TPU_CHIPS_PER_HOST_BOUNDS", "2,2,1")
    assert slices.here() == Slice(4, (4, 4, 1))
    monkeypatch.setenv("TPU_HOST_BOUNDS", "2,x,1")
    assert slices.here() == Slice(4, None)


def test_metadata_server_describes_the_slice(monkeypatch: pytest.MonkeyPatch, metadata: str):
    monkeypatch.setenv("GCE_METADATA_IP", metadata)
    assert slices.here() == Slice(1, None), "where jax sees no chip it is not asked"
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY")
    assert slices.here() == Slice(2, (2, 2, 2))
    monkeypatch.setitem(ATTRIBUTES, "tpu-env", "ACCELERATOR_TYPE: 'v3-8'\n")
    monkeypatch.delitem(ATTRIBUTES, "worker-network-endpoints")
    assert slices.here() == Slice(1, None)


def test_missing_server_is_skipped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY")
    assert slices.here() == Slice(1, None)
