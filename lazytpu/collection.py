"""When Python's garbage collector rests: while modules load and programs are made, since nearly all of it stays, and at
the end of the process.

With torch and jax loaded, one full collection goes through half a million objects, in 0.1 to 0.2 s of CPU.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import IOBase
from types import GeneratorType
from typing import Any

from lazytpu.undisturbed import undisturbed


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
    """The same for code that loads modules, which the process does not notice. What it leaves joins the oldest
    generation without being looked at.

    Otherwise the first collections afterwards would go through all of it three times, once a generation. Nothing is
    kept alive: the next full collection finds what is garbage, as ever.
    """
    with no_collection(), undisturbed():
        yield
        if not gc.get_freeze_count():  # what the process froze itself stays frozen
            gc.freeze()
            gc.unfreeze()


def rest_at_exit() -> None:
    """Keep Python from looking for garbage when the process ends, unless some object waits for its end.

    Python looks at everything several times then, and takes cycles apart, only for their memory, which goes anyway: 0.5
    s after a first op, more than a second after a training loop. Registered early, this is called late.
    """
    atexit.register(_rest)


def _rest() -> None:
    try:
        rests = not await_end(gc.get_objects())
    except Exception:  # noqa: BLE001  (of a class or a stream that answers in its own way)
        return
    if rests:
        gc.freeze()


_INDIFFERENT = frozenset(("lazytpu", "jaxlib", "jax", "nanobind"))
"Packages whose objects free memory at their end, and do nothing else."
_BINDINGS = "nanobind"
"The module of the classes of what nanobind makes: types, functions. Extensions print those that are left at the end."


def await_end(objects: Sequence[Any]) -> bool:
    """Whether one of some objects has something to do at its end: a class with `__del__`, a file that is open, or what
    nanobind made for an extension that counts what is left, such as triton's."""
    every = set(map(type, objects))
    bindings = {kind for kind in every if kind.__module__ == _BINDINGS}
    if any(type(each) in bindings and _counted(each) for each in objects):
        return True
    kinds = {kind for kind in every if _finalized(kind)}
    if not kinds:
        return False
    found = [each for each in objects if type(each) in kinds]
    standard = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
    layers = {id(getattr(stream, layer, None)) for stream in standard for layer in ("buffer", "raw")}
    layers |= {id(getattr(getattr(stream, "buffer", None), "raw", None)) for stream in standard}
    layers |= set(map(id, standard))
    return not all(id(each) in layers or (isinstance(each, IOBase) and each.closed) for each in found)


def _counted(binding: Any) -> bool:
    home = getattr(binding, "__module__", None)  # None of methods, whose class has one
    return home is not None and str(home).partition(".")[0] not in _INDIFFERENT


def _finalized(kind: type) -> bool:
    if issubclass(kind, GeneratorType) or str(kind.__module__).partition(".")[0] in _INDIFFERENT:
        return False
    return any("__del__" in vars(base) for base in kind.__mro__)
