"""Programs that another process compiles: this one does not lend it the interpreter, and may end before it is done.

    ticket = elsewhere.compile(module, key, name="train")
    ...
    if ticket.wait(15.0):
        program = ticket.result().program

The process, the helper, is started at the first use and kept while there is work. It compiles one program at a time
into the cache on disk, under the lock that keeps two processes from compiling the same. When this process has ended it
goes on for at most `options.compile_after_exit` seconds. Its memory does not stay: when it has been idle for a minute
it ends, and the next program starts another.
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

LOSSES = 2
"So many helpers may die with work to do; then this process starts no more."


class HelperLost(RuntimeError):
    """The helper ended, or what it made is not to be had: this process can compile the program itself."""


class Ticket:
    """A program that the helper was given. `name` is the program's, `key` its name in the cache."""

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
        """Whether `result` gives, or raises, at once."""
        return self._settled.is_set()

    @property
    def seconds(self) -> float:
        """How long it has taken, or took."""
        return time.perf_counter() - self._began if self._seconds is None else self._seconds

    def wait(self, timeout: float | None = None) -> bool:
        """Wait so many seconds until it is `done`, and say whether it is. An exception of a signal's handler may end
        the wait; nothing else happens then."""
        return self._settled.wait(timeout)

    def result(self) -> Obtained:
        """The program, loaded from the cache, or from what was sent, once the helper is done.

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
        """What became of it; the first answer counts."""
        if not self.done:
            self._answer, self._seconds = answer, self.seconds
            self._settled.set()


class _Helpers:
    """The helper of this process, if there is one, and the tickets that it has not answered."""

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
            except (OSError, RuntimeError) as error:  # no process, or no thread
                self.tickets.pop(number, None)
                self.losses += 1
                ticket.settle({"outcome": "lost", "reason": str(error)})

    def heard(self, helper: Helper, answer: dict[str, Any] | None) -> None:
        """An answer of a helper, on the thread that listens to it; None when it has ended."""
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
        """What `elsewhere.remind` says."""
        with self.lock, suppress(OSError):  # it has just ended
            if self.current is not None:
                self.current.send({"after_exit": options.compile_after_exit}, b"")

    def leave(self) -> list[Ticket]:
        """What `elsewhere.leave` says."""
        with self.lock:
            left, self.tickets = list(self.tickets.values()), {}
            helper, self.current = self.current, None
            if helper is not None:
                with suppress(OSError):  # it has just ended
                    helper.send({"after_exit": options.compile_after_exit}, b"")
                    helper.hang_up()
        return left

    def _ended(self, helper: Helper) -> None:
        with self.lock:
            lost: list[Ticket] = []
            if self.current is helper:
                self.current = None
                lost, self.tickets = list(self.tickets.values()), {}
                self.losses += bool(lost)
            said = helper.last_words()
            helper.close()
        for ticket in lost:
            ticket.settle({"outcome": "lost", "reason": f"that process ended{said and ', saying: '}{said}"})


_helpers = _Helpers()


def available(module: ir.Module) -> bool:
    """Whether the helper can make the program of a module: there is a cache on disk, the platform's programs can be
    written to it and compiled without its devices, and the program calls no function that only this process has."""
    return (
        bool(sys.executable)
        and not getattr(sys, "frozen", False)  # it is the application, which would start itself
        and _helpers.losses < LOSSES
        and store().writable()
        and (client.platform() == "cpu" or _topology() is not None)
        and all(name.startswith("lapack_") for name in host_functions.called_by(module))
    )


def compile(
    module: ir.Module, key: str, *, name: str = "program", device: int = 0, estimate: float | None = None
) -> Ticket:
    """Hand a module that is `available`, and whose `program_key` is `key`, to the helper, behind what it has already.
    `estimate` are the seconds that it will take, for the list of what is in the making."""
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
    """Tell the helper what `options.compile_after_exit` is now. Otherwise it knows what it was at its last program."""
    _helpers.remind()


def leave() -> list[Ticket]:
    """At the end of the process: let the helper go on by itself, for `options.compile_after_exit` seconds. Returns the
    tickets that it has not answered, oldest first; nothing becomes of them in this process."""
    return _helpers.leave()


@cache
def _topology() -> tuple[str, tuple[int, ...]] | None:
    """The TPUs that programs of this process are for, if it has any, as `topologies.aim_at` takes them."""
    if client.platform() != "tpu":
        return None
    from lazytpu.runtime.tpu import topologies  # here: no other platform needs it

    return topologies.here()


def _started(heard: Callable[[Helper, dict[str, Any] | None], None]) -> Helper:
    """A helper for the platform of this process. It opens no TPU, as a chip belongs to one process."""
    topology = _topology()
    if topology is None:
        return Helper(heard)
    from lazytpu.runtime.tpu.tpu_compiler import ALONE

    return Helper(heard, topology, ALONE)


def _in_child() -> None:
    """A forked child has no helper, and does not keep its parent's from seeing how the parent ends."""
    global _helpers
    if _helpers.current is not None:
        _helpers.current.close()
    _helpers = _Helpers()


os.register_at_fork(after_in_child=_in_child)
