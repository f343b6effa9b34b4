"""When Python's garbage collector rests: while modules load and programs are made, since nearly all of it stays.

With torch and jax loaded, one full collection goes through half a million objects, in 0.1 to 0.2 s of CPU.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection inside, unless something inside asks for one."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def loading() -> Iterator[None]:
    """The same for code that loads modules. What it leaves joins the oldest generation without being looked at.

    Otherwise the first collections afterwards would go through all of it three times, once a generation. Nothing is
    kept alive: the next full collection finds what is garbage, as ever.
    """
    with no_collection():
        yield
        if not gc.get_freeze_count():  # what the process froze itself stays frozen
            gc.freeze()
            gc.unfreeze()
