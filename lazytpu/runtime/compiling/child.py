"""The helper process: `python child.py`, with a socket to the process that asks as its standard input.

Run by its path, by `lazytpu.runtime.compiling.helper`. It compiles what it is given, one program at a time and in that
order, and ends when it is told to or when its parent has ended. What it has been given by then it finishes first, as
long as its parent's `compile_after_exit` allows.
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
"Seconds without work after which it offers to end: it holds 200 MB, and starting costs less than a second."
NICE = 5
"Its priority once its parent has ended. Before, it does what a thread of its parent would; the next may wait for it."


def detach() -> socket.socket:
    """Let go of what the parent has: it need not wait for this process, and its terminal, files and folder are its own.
    Returns the connection, which was standard input."""
    if os.fork():
        os._exit(0)  # the parent's child; this process is init's, so that no os.wait() of a script ever meets it
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    os.close(nothing)
    return connection


class Worker:
    """Compiles requests on a thread, and answers each."""

    def __init__(self, connection: socket.socket, parent: int) -> None:
        self.connection = connection
        self.parent = parent
        self.requests: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._work, name="compiler", daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether all that was asked for is answered."""
        return self.requests.unfinished_tasks == 0

    def finish(self, seconds: float) -> None:
        """Wait so long for what has been asked for."""
        done = self.requests.all_tasks_done
        with done:
            done.wait_for(lambda: self.idle, min(seconds, threading.TIMEOUT_MAX))

    def _work(self) -> None:
        from lazytpu.runtime.compiling import wire  # here: the first import of jax takes a while, and others wait

        while True:
            header, module = self.requests.get()
            answer, payload = self._answer(header, module)
            with suppress(OSError):  # the parent has ended, and the next process finds the program
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
    """Hand the worker what the parent asks for until that has ended, or hangs up; returns for how many seconds to go on
    then. Without work for `idle` seconds, offer to end. A message without a module only says for how long."""
    from lazytpu.runtime.compiling import wire

    limit = 0.0
    while True:
        if not select.select([connection], [], [], idle)[0]:
            if worker.idle:
                with suppress(OSError):  # it has just ended, which is the next thing to be read
                    wire.send(connection, {"outcome": "idle"})
            continue
        message = wire.receive(connection)
        if message is None:
            return limit
        limit = float(message[0]["after_exit"])
        if message[1]:
            worker.requests.put(message)


def main(parent: int, topology: str, chips_per_host: str) -> None:
    """Serve `parent`, the process of that number. With a topology, programs are for that one."""
    connection = detach()
    if topology:
        from lazytpu.runtime.tpu import topologies

        topologies.aim_at(topology, tuple(int(extent) for extent in chips_per_host.split("x")))
    worker = Worker(connection, parent)
    limit = serve(connection, worker)
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # that thread has ended
            os.setpriority(os.PRIO_PROCESS, int(thread), NICE)
    worker.finish(limit)


if __name__ == "__main__":
    # The package without its __init__, which loads torch: 2 s of CPU for nothing.
    package = types.ModuleType("lazytpu")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["lazytpu"] = package
    here = str(Path(__file__).parent)
    sys.path[:] = [entry for entry in sys.path if entry != here]  # it is there but in a Python that is told not to
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
    os._exit(0)  # XLA cannot be stopped, and is in the middle of what was not finished in time
