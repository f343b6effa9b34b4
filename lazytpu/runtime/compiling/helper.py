"""The parent's side of the helper process: start it, send requests, and receive answers."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lazytpu.runtime.children import search_path
from lazytpu.runtime.compiling import wire

CHILD = Path(__file__).with_name("child.py")

PATIENCE = 5
"""Seconds within which the helper has to accept part of a message. Its reading thread does so at once unless it was
stopped."""

# Without any device: programs for a CPU need none, and those for a TPU are compiled for its topology.
_ALONE = {"JAX_PLATFORMS": "cpu", "LAZYTPU_PLATFORM": "cpu"}


class Helper:
    """One helper process. `heard` is called on a thread with every answer, including its payload, and with None once
    the helper has ended.

    It inherits the environment, and so XLA's flags and the number of cores, but neither files nor the terminal. When
    this process ends in any manner, the kernel closes the connection, which notifies the helper.
    """

    def __init__(
        self,
        heard: Callable[[Helper, dict[str, Any] | None], None],
        topology: tuple[str, tuple[int, ...]] = ("", ()),
        environment: Mapping[str, str] = {},
    ) -> None:
        """Start the process. `topology` is its compilation target unless that is the CPU, and `environment` has
        variables for it. Raises OSError, and RuntimeError when no thread can be started."""
        self.heard = heard
        self._said = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (its output, for a message if it dies)
        self.connection, theirs = socket.socketpair()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", PATIENCE, 0))
        name, chips_per_host = topology
        command = [sys.executable, str(CHILD), str(os.getpid()), name, "x".join(map(str, chips_per_host))]
        surroundings = {**os.environ, **_ALONE, **environment, "PYTHONPATH": search_path()}
        surroundings.pop("PYTHONWARNINGS", None)  # its warnings would be errors that nobody sees
        try:
            launched = subprocess.Popen(
                command,
                env=surroundings,
                cwd="/",
                stdin=theirs.fileno(),
                stdout=self._said,
                stderr=self._said,
                start_new_session=True,
            )
            threading.Thread(target=self._hear, args=(launched,), name="lazytpu helper", daemon=True).start()
        except BaseException:
            self.close()
            raise
        finally:
            theirs.close()

    def send(self, header: Mapping[str, Any], payload: bytes) -> None:
        """Send a request. Raises OSError when the helper has ended, or does not accept it."""
        try:
            wire.send(self.connection, header, payload)
        except BaseException:  # half a message may have been sent
            self.hang_up()
            raise

    def hang_up(self) -> None:
        """Close the connection for both directions. The helper finishes pending requests, as when this process ends."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection and the output file in this process."""
        self.connection.close()
        self._said.close()

    def last_words(self) -> str:
        """Return the last lines that the helper wrote to standard error."""
        self._said.seek(0)
        return "\n".join(self._said.read().decode(errors="replace").splitlines()[-8:])

    def _hear(self, launched: subprocess.Popen[bytes]) -> None:
        launched.wait()  # at once: the child ends as soon as it has forked the helper, which outlives it
        while True:
            try:
                message = wire.receive(self.connection)
            except OSError:  # closed by this process
                message = None
            self.heard(self, None if message is None else {**message[0], "payload": message[1]})
            if message is None:
                return
