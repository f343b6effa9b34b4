"""The decision between the helper process (`lazytpu.runtime.compiling`) and a thread of this process for
a compilation."""

from __future__ import annotations

from collections.abc import Callable

from lazytpu.inspection.terminal import say
from lazytpu.runtime.cache import peers, programs
from lazytpu.runtime.cache.programs import Obtained
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.compiling import elsewhere
from lazytpu.runtime.compiling.elsewhere import HelperLost, Ticket
from lazytpu.runtime.xla.mlir import ir

LEAST = 8.0
"""Compile time in seconds that justifies the start of a helper, and the store and load of its program."""
BEHIND = 2.0
"""The same for a program that no step waits for: the start delays nothing, and the script keeps the interpreter."""


def obtain(
    module: ir.Module, key: str, seconds: float, *, behind: bool, name: str, handed: Callable[[Ticket], None] | None
) -> Obtained:
    """Return the program of a module, as `programs.obtain` does.

    If compilation takes long by the estimate `seconds`, the helper process compiles it, and `handed` receives the
    ticket. Without `handed`, or if the helper is lost, this process compiles it. `behind` says that no step waits for
    it.

    Raise CompileError.
    """
    long = seconds >= (BEHIND if behind else LEAST)
    if handed is not None and long and not store().has(programs.KIND, key) and elsewhere.available(module):
        with peers.sought(programs.KIND, key) as from_peer:
            if not from_peer:
                ticket = elsewhere.compile(module, key, name=name)
                handed(ticket)
                try:
                    return ticket.result()
                except HelperLost as error:
                    say(f"{error}; it is compiled in this process")
                    return programs.obtain(module, key, name=name)
    return programs.obtain(module, key, name=name)


def leave(module: ir.Module, *, name: str, handed: Callable[[str, Ticket], None]) -> None:
    """Hand a program that is not on disk to the helper at the end of the process; `handed` receives its key and ticket.

    Without a helper the next process compiles it.
    """
    key = programs.program_key(module)
    if not store().has(programs.KIND, key) and elsewhere.available(module):
        handed(key, elsewhere.compile(module, key, name=name))
