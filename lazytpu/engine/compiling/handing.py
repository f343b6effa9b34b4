"""Which programs the helper process compiles (`lazytpu.runtime.compiling`), and which a thread of this one."""

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
"Seconds of compiling that make a helper worth its start, and what its program costs to store and to load."
BEHIND = 2.0
"The same of a program that no step waits for: the start costs it nothing, and the script has the interpreter."


def obtain(
    module: ir.Module, key: str, seconds: float, *, behind: bool, name: str, handed: Callable[[Ticket], None] | None
) -> Obtained:
    """The program of a module, as `programs.obtain` gives it. If compiling it takes long, by an estimate in `seconds`,
    the helper does it, and `handed` gets the ticket; without `handed`, or if the helper is lost, it is compiled here.
    `behind` says that no step waits for it.

    Raises CompileError.
    """
    long = seconds >= (BEHIND if behind else LEAST)
    if handed is not None and long and not store().has(programs.KIND, key) and elsewhere.available(module):
        with peers.sought(programs.KIND, key) as found:
            if not found:
                ticket = elsewhere.compile(module, key, name=name)
                handed(ticket)
                try:
                    return ticket.result()
                except HelperLost as error:
                    say(f"{error}; it is compiled in this process")
                    return programs.obtain(module, key, name=name)
    return programs.obtain(module, key, name=name)


def leave(module: ir.Module, *, name: str, handed: Callable[[str, Ticket], None]) -> None:
    """Give the helper, at the end of the process, a program that is not on disk: `handed` is told its key and ticket.
    Without a helper the next process compiles it."""
    key = programs.program_key(module)
    if not store().has(programs.KIND, key) and elsewhere.available(module):
        handed(key, elsewhere.compile(module, key, name=name))
