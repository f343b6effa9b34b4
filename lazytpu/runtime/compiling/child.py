"""The helper process: `python child.py`, with a socket to the requesting process as its standard input.

`lazytpu.runtime.compiling.helper` runs it by its path. It compiles one program at a time, in the order of the requests.
It ends on request, or when its parent has ended; before that it finishes pending requests, within its parent's
`compile_after_exit`.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path
from typing import Any

IDLE = 60.0
"""Seconds without work after which it offers to end: it holds 200 MB, and a new start takes less than a second."""
NICE = 5
"""Its priority (nice value) once its parent has ended. Before, it does the work of a parent's thread, which may be
waited for."""


def detach() -> socket.socket:
    """Detach from the parent: the parent need not wait for this process, and its terminal, files and folder are closed.
    Return the connection, which was standard input."""
    if os.fork():
        os._exit(0)  # the parent's child ends; init adopts this process, so that no os.wait() of a script reports it
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    os.close(nothing)
    return connection


class Worker:
    """Compile requests on a thread, and answer each one."""

    def __init__(self, connection: socket.socket, parent: int) -> None:
        self.connection = connection
        self.parent = parent
        self.requests: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._work, name="compiler", daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether all requests are answered."""
        return self.requests.unfinished_tasks == 0

    def finish(self, seconds: float) -> None:
        """Wait up to `seconds` for the pending requests."""
        done = self.requests.all_tasks_done
        with done:
            done.wait_for(lambda: self.idle, min(seconds, threading.TIMEOUT_MAX))

    def _work(self) -> None:
        # here, since the first import of jax takes a while that others need not wait
        from lazytpu.runtime.compiling import wire

        while True:
            header, module = self.requests.get()
            answer, payload = self._answer(header, module)
            with suppress(OSError):  # the parent has ended; the next process finds the program in the cache
                wire.send(self.connection, {"number": header["number"], **answer}, payload)
            self.requests.task_done()

    def _answer(self, header: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        from lazytpu.options import options
        from lazytpu.runtime.cache import programs
        from lazytpu.runtime.compiling.provide import provide
        from lazytpu.runtime.errors import CompileError
        from lazytpu.runtime.xla.client import mlir_context
        from lazytpu.runtime.xla.mlir import ir

        try:
            options.cache_dir, options.cache_limit = header["cache_dir"], header["cache_limit"]
            programs.OPTIONS.clear()
            programs.OPTIONS.update(header["options"])
            about = {**header["about"], "for": self.parent}
            with mlir_context():
                module = ir.Module.parse(data)
                name, functions = header["name"], header["functions"]
                made = provide(module, header["key"], name=name, functions=functions, about=about)
            outcome = "stored" if made.entry is None else "sent"
            return {"outcome": outcome, "milliseconds": made.milliseconds, "entry": made.entry}, made.payload
        except CompileError as error:
            return {"outcome": "refused", "reason": error.reason}, b""
        except Exception as error:  # noqa: BLE001  (whatever it is, the parent can still compile)
            return {"outcome": "unfit", "reason": str(error) or repr(error)}, b""


def serve(connection: socket.socket, worker: Worker, idle: float = IDLE) -> float:
    """Pass the parent's requests to the worker until the parent ends or hangs up. Return the seconds for which to
    continue after that. Offer to end after `idle` seconds without work. A message without a module only updates the
    seconds."""
    from lazytpu.runtime.compiling import wire

    limit = 0.0
    while True:
        if not select.select([connection], [], [], idle)[0]:
            if worker.idle:
                with suppress(OSError):  # the parent has ended, which the next read reports
                    wire.send(connection, {"outcome": "idle"})
            continue
        message = wire.receive(connection)
        if message is None:
            return limit
        limit = float(message[0]["after_exit"])
        if message[1]:
            worker.requests.put(message)


def main(parent: int, topology: str, chips_per_host: str) -> None:
    """Serve the process with the number `parent`. With a topology, compile programs for it."""
    connection = detach()
    if topology:
        from lazytpu.runtime.tpu import topologies

        topologies.aim_at(topology, tuple(int(extent) for extent in chips_per_host.split("x")))
    worker = Worker(connection, parent)
    limit = serve(connection, worker)
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # the thread has ended
            os.setpriority(os.PRIO_PROCESS, int(thread), NICE)
    worker.finish(limit)


if __name__ == "__main__":
    # The package without its __init__, which would load torch: 2 s of CPU in vain.
    package = types.ModuleType("lazytpu")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["lazytpu"] = package
    here = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]  # Python adds it, unless started with -P or -I
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
    os._exit(0)  # XLA's threads cannot be stopped, and may be in the middle of a compilation
