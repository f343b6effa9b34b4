"""Which programs the helper process compiles (`lazytpu.runtime.compiling`), and which a thread of this one."""

from __future__ import annotations

from collections.abc import Callable

from lazytpu.engine.compiling.progress import say
from lazytpu.runtime.cache import programs
from lazytpu.runtime.cache.programs import Obtained
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.compiling import elsewhere
from lazytpu.runtime.compiling.elsewhere import HelperLost, Ticket
from lazytpu.runtime.mlir import count_ops, ir

SECONDS_PER_OP = 0.005
"What XLA:CPU takes to compile an op of a program (docs/background-compilation.md)."
LEAST = 8.0
"Seconds of compiling that make a helper worth its start, and what its program costs to store and to load."


def worth_a_helper(ops: int) -> bool:
    """Whether a program of so many ops is compiled in the helper process."""
    return ops * SECONDS_PER_OP >= LEAST


def obtain(module: ir.Module, key: str, *, name: str, handed: Callable[[Ticket], None]) -> Obtained:
    """The program of a module, as `programs.obtain` gives it. If it takes long, the helper compiles it, and `handed` is
    told the ticket; if the helper is lost, it is compiled here.

    Raises CompileError.
    """
    if worth_a_helper(count_ops(module)) and not store().has(programs.KIND, key) and elsewhere.available(module):
        ticket = elsewhere.compile(module, key, name=name)
        handed(ticket)
        try:
            return ticket.result()
        except HelperLost as error:
            say(f"{error}; it is compiled in this process")
    return programs.obtain(module, key, name=name)
