"""Messages between a process and its helper: JSON and bytes over a socket. Nothing is ever unpickled.

A message consists of the lengths of its two parts (4 bytes each, little-endian), a header in JSON, and a payload.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

_LENGTHS = struct.Struct("<II")
LARGEST = 2**32 - 1
"""The largest payload, in bytes."""

Message = tuple[dict[str, Any], bytes]


def send(connection: socket.socket, header: Mapping[str, Any], payload: bytes = b"") -> None:
    """Send a message. Raises OSError when the other side has ended."""
    text = json.dumps(header).encode()
    # Without SIGPIPE: a script may let it end its process, as scripts do that write into `head`.
    connection.sendall(_LENGTHS.pack(len(text), len(payload)) + text + payload, socket.MSG_NOSIGNAL)


def receive(connection: socket.socket) -> Message | None:
    """Return the next complete message; None when the other side has ended."""
    lengths = _read(connection, _LENGTHS.size)
    if lengths is None:
        return None
    header, payload = (_read(connection, length) for length in _LENGTHS.unpack(lengths))
    return None if header is None or payload is None else (json.loads(header), payload)


def _read(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        try:
            received = connection.recv_into(view)
        except ConnectionResetError:  # the other side ended with messages unread
            return None
        if received == 0:
            return None
        view = view[received:]
    return bytes(data)
