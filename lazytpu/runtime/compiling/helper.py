"""The helper process as its parent sees it: started, given requests, and heard."""

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
"Seconds in which it has to take something of a message, which its reading thread does at once: else it was stopped."

# No device is looked for: programs for a CPU need none, and those for a TPU are compiled for its topology.
_ALONE = {"JAX_PLATFORMS": "cpu", "LAZYTPU_PLATFORM": "cpu"}


class Helper:
    """One process. `heard` is called on a thread with every answer, its payload included, and with None once it has
    ended.

    It inherits the environment, and so XLA's flags and the number of cores, but neither files nor the terminal; when
    this process ends, whichever way, the kernel closes the connection, and that tells it.
    """

    def __init__(
        self,
        heard: Callable[[Helper, dict[str, Any] | None], None],
        topology: tuple[str, tuple[int, ...]] = ("", ()),
        environment: Mapping[str, str] = {},
    ) -> None:
        """Start it. `topology` is what it compiles for if that is not the CPU, and `environment` what that needs.
        Raises OSError, and RuntimeError where there can be no more threads."""
        self.heard = heard
        self._said = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (its last words, if it dies)
        self.connection, theirs = socket.socketpair()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", PATIENCE, 0))
        name, chips_per_host = topology
        command = [sys.executable, str(CHILD), str(os.getpid()), name, "x".join(map(str, chips_per_host))]
        surroundings = {**os.environ, **_ALONE, **environment, "PYTHONPATH": search_path()}
        surroundings.pop("PYTHONWARNINGS", None)  # an error there would be one that nobody sees
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
        """Give it a request. Raises OSError when it has ended, or does not take it."""
        try:
            wire.send(self.connection, header, payload)
        except BaseException:  # half a message may be on its way
            self.hang_up()
            raise

    def hang_up(self) -> None:
        """Let it end: it finishes what it was given, as it does when this process ends."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close what this process has of it."""
        self.connection.close()
        self._said.close()

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        self._said.seek(0)
        return "\n".join(self._said.read().decode(errors="replace").splitlines()[-8:])

    def _hear(self, launched: subprocess.Popen[bytes]) -> None:
        launched.wait()  # at once: the helper is a child of that child's, and outlives it
        while True:
            try:
                message = wire.receive(self.connection)
            except OSError:  # closed here
                message = None
            self.heard(self, None if message is None else {**message[0], "payload": message[1]})
            if message is None:
                return
