"""Remote compilation: another process compiles a program, does not take this interpreter's time, and may outlive it.

    ticket = elsewhere.compile(module, key, name="train")
    ...
    if ticket.wait(15.0):
        program = ticket.result().program

The process, the helper, starts at the first use and is kept while there is work. It compiles one program at a time into
the cache on disk, under the lock that keeps two processes from compiling the same. When this process has ended, the
helper continues for at most `options.compile_after_exit` seconds. It ends after a minute without work, to free its
memory; the next program starts another.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from lazytpu.options import options
from lazytpu.runtime.cache import programs
from lazytpu.runtime.cache.programs import Obtained
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.compiling.helper import Helper
from lazytpu.runtime.errors import LoadError, compile_error
from lazytpu.runtime.xla import client, host_functions
from lazytpu.runtime.xla.mlir import ir
from lazytpu.runtime.xla.module_options import members_of

MAX_LOST_HELPERS = 2
"""The number of helpers that may die with work to do before this process stops starting them."""


class HelperLost(RuntimeError):
    """The helper ended, or its program cannot be loaded. This process can compile the program itself."""


class Ticket:
    """A program that the helper compiles: its `name`, and its cache `key`."""

    def __init__(self, key: str, name: str, device: int) -> None:
        self.key = key
        self.name = name
        self.device = device
        self._began = time.perf_counter()
        self._seconds: float | None = None
        self._answer: Mapping[str, Any] = {}
        self._settled = threading.Event()

    @property
    def done(self) -> bool:
        """Whether `result` returns or raises at once."""
        return self._settled.is_set()

    @property
    def seconds(self) -> float:
        """The seconds since the request, up to the answer."""
        return time.perf_counter() - self._began if self._seconds is None else self._seconds

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds until the ticket is `done`, and return whether it is. An exception of a signal
        handler may end the wait; the ticket stays valid."""
        return self._settled.wait(timeout)

    def result(self) -> Obtained:
        """Wait for the helper, and return the program, loaded from the cache or from the bytes that the helper sent.

        Raises CompileError when XLA refused the module, and HelperLost.
        """
        self._settled.wait()
        answer = self._answer
        if answer["outcome"] == "refused":
            raise compile_error(self.name, answer["reason"])
        if answer["outcome"] == "sent":
            try:
                sent = programs.unpacked(answer["payload"], answer["entry"], self.key, self.name, self.device)
            except LoadError as error:
                raise HelperLost(
                    f"{self.name} was compiled in the helper process, but does not load: {error}"
                ) from error
            return Obtained(sent, True, answer["milliseconds"])
        if answer["outcome"] != "stored":
            raise HelperLost(f"{self.name} was not compiled in the helper process: {answer['reason']}")
        taken, start = answer["milliseconds"], time.perf_counter()
        program = programs.load(self.key, name=self.name, device=self.device, compiled=taken is not None)
        if program is None:
            raise HelperLost(f"{self.name} was compiled in the helper process, but is not in {store().root} any more")
        return Obtained(program, taken is not None, 1e3 * (time.perf_counter() - start) if taken is None else taken)

    def settle(self, answer: Mapping[str, Any]) -> None:
        """Resolve the ticket with an answer. Later answers are ignored."""
        if not self.done:
            self._answer, self._seconds = answer, self.seconds
            self._settled.set()


class _Helpers:
    """The helper of this process, if there is one, and the tickets without an answer."""

    def __init__(self) -> None:
        self.current: Helper | None = None
        self.tickets: dict[int, Ticket] = {}
        self.losses = 0
        self.lock = threading.Lock()
        self.numbers = itertools.count()

    def give(self, ticket: Ticket, header: dict[str, Any], module: bytes) -> None:
        with self.lock:
            number = next(self.numbers)
            self.tickets[number] = ticket
            try:
                if self.current is None:
                    self.current = _started(self.heard)
                self.current.send({"number": number, **header}, module)
            except (OSError, RuntimeError) as error:  # no process, or no thread, could be started
                self.tickets.pop(number, None)
                self.losses += 1
                ticket.settle({"outcome": "lost", "reason": str(error)})

    def heard(self, helper: Helper, answer: dict[str, Any] | None) -> None:
        """Process an answer of a helper, or its end (None), on the thread that listens to it."""
        if answer is None:
            self._ended(helper)
        elif answer["outcome"] == "idle":
            with self.lock:
                if self.current is helper and not self.tickets:
                    self.current = None
                    helper.hang_up()
        else:
            with self.lock:
                ticket = self.tickets.pop(answer["number"], None)
            if ticket is not None:
                ticket.settle(answer)

    def remind(self) -> None:
        """See `elsewhere.remind`."""
        with self.lock, suppress(OSError):  # the helper has just ended
            if self.current is not None:
                self.current.send({"after_exit": options.compile_after_exit}, b"")

    def leave(self) -> list[Ticket]:
        """See `elsewhere.leave`."""
        with self.lock:
            unanswered, self.tickets = list(self.tickets.values()), {}
            helper, self.current = self.current, None
            if helper is not None:
                with suppress(OSError):  # the helper has just ended
                    helper.send({"after_exit": options.compile_after_exit}, b"")
                    helper.hang_up()
        return unanswered

    def _ended(self, helper: Helper) -> None:
        with self.lock:
            lost: list[Ticket] = []
            if self.current is helper:
                self.current = None
                lost, self.tickets = list(self.tickets.values()), {}
                self.losses += bool(lost)
            last_words = helper.last_words()
            helper.close()
        for ticket in lost:
            ticket.settle({"outcome": "lost", "reason": f"that process ended{last_words and ', saying: '}{last_words}"})


_helpers = _Helpers()


def available(module: ir.Module) -> bool:
    """Whether the helper can compile a module. There must be a cache on disk. The platform's programs must serialize,
    and compile without its devices. The program may call no function that only this process has registered, nor run on
    the processes of a job, whose client the helper lacks."""
    return (
        bool(sys.executable)
        and not getattr(sys, "frozen", False)  # sys.executable is the application, which would start itself
        and _helpers.losses < MAX_LOST_HELPERS
        and store().writable()
        and (client.platform() == "cpu" or _topology() is not None)
        and not members_of(module)
        and all(name.startswith("lapack_") for name in host_functions.called_by(module))
    )


def compile(
    module: ir.Module, key: str, *, name: str = "program", device: int = 0, estimate: float | None = None
) -> Ticket:
    """Queue a module, which is `available` and whose `program_key` is `key`, at the helper. `estimate` is the expected
    time in seconds, for the list of entries in progress."""
    ticket = Ticket(key, name, device)
    header = {
        "key": key,
        "name": name,
        "functions": host_functions.called_by(module),
        "options": dict(programs.OPTIONS),
        "cache_dir": str(store().root),
        "cache_limit": options.cache_limit,
        "after_exit": options.compile_after_exit,
        "about": {} if estimate is None else {"estimate": estimate},
    }
    _helpers.give(ticket, header, client.module_bytecode(module))
    return ticket


def remind() -> None:
    """Send the helper the current `options.compile_after_exit`. Otherwise it uses the value of its last request."""
    _helpers.remind()


def leave() -> list[Ticket]:
    """Leave the helper to continue alone for `options.compile_after_exit` seconds, as this process ends. Return the
    tickets without an answer, oldest first; they are never resolved in this process."""
    return _helpers.leave()


@cache
def _topology() -> tuple[str, tuple[int, ...]] | None:
    """Return the topology of this process's TPUs, if it has any, as `topologies.aim_at` takes it."""
    if client.platform() != "tpu":
        return None
    from lazytpu.runtime.tpu import topologies  # here: no other platform needs it

    return topologies.here()


def _started(heard: Callable[[Helper, dict[str, Any] | None], None]) -> Helper:
    """Start a helper for the platform of this process. It opens no TPU, as a chip belongs to one process."""
    topology = _topology()
    if topology is None:
        return Helper(heard)
    from lazytpu.runtime.tpu.tpu_compiler import ALONE

    return Helper(heard, topology, ALONE)


def _in_child() -> None:
    """Close the parent's connection in a forked child, so that the helper sees the end of the parent, and start without
    a helper."""
    global _helpers
    if _helpers.current is not None:
        _helpers.current.close()
    _helpers = _Helpers()


os.register_at_fork(after_in_child=_in_child)
