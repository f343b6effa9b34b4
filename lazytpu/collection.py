"""Suspends Python's garbage collector while modules load and programs are compiled, since nearly all of their objects
stay, and at the end of the process.

With torch and jax loaded, a full collection visits half a million objects, in 0.1 to 0.2 s of CPU.
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

from lazytpu import full_collections
from lazytpu.undisturbed import undisturbed


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable automatic collection inside the block; explicit calls of gc.collect() still collect. A full collection
    follows if the process has grown much."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        full_collections.look()


@contextmanager
def loading() -> Iterator[None]:
    """As `no_collection`, for code that loads modules, with `undisturbed` generators. Objects that the block leaves
    join the oldest generation without a visit.

    Otherwise the first collections afterwards would visit all of them three times, once for each generation. Nothing is
    kept alive: the next full collection still frees the garbage.
    """
    with no_collection(), undisturbed():
        yield
        if not gc.get_freeze_count():  # objects that the process itself froze stay frozen
            gc.freeze()
            gc.unfreeze()


def rest_at_exit() -> None:
    """Skip Python's collections at the end of the process, unless some object has a finalizer that matters.

    They visit all objects several times and take cycles apart, only to free memory that the process returns anyway: 0.5
    s after a first op, more than a second after a training loop. Python calls exit functions in reverse order, so
    register this one early.
    """
    atexit.register(_rest)


def _rest() -> None:
    try:
        skips = not await_end(gc.get_objects())
    except Exception:  # noqa: BLE001    ((a class or a stream may raise any error when it is inspected))
        return
    if skips:
        gc.freeze()


_INDIFFERENT = frozenset(("lazytpu", "jaxlib", "jax", "nanobind"))
"""Packages whose finalizers only free memory."""
_BINDINGS = "nanobind"
"""The module of nanobind's own classes of types and functions. Extensions print the ones that are left at the end."""


def await_end(objects: Sequence[Any]) -> bool:
    """Whether one of the objects has a finalizer that matters: a class with `__del__`, an open file, or a binding of
    nanobind for an extension that counts its leaks, such as triton's."""
    classes = set(map(type, objects))
    bindings = {cls for cls in classes if cls.__module__ == _BINDINGS}
    if any(type(obj) in bindings and _counted(obj) for obj in objects):
        return True
    finalized = {cls for cls in classes if _finalized(cls)}
    if not finalized:
        return False
    finalizable = [obj for obj in objects if type(obj) in finalized]
    standard = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
    layers = {id(getattr(stream, layer, None)) for stream in standard for layer in ("buffer", "raw")}
    layers |= {id(getattr(getattr(stream, "buffer", None), "raw", None)) for stream in standard}
    layers |= set(map(id, standard))
    return not all(id(obj) in layers or (isinstance(obj, IOBase) and obj.closed) for obj in finalizable)


def _counted(binding: Any) -> bool:
    module = getattr(binding, "__module__", None)  # None for methods, whose class has one
    return module is not None and str(module).partition(".")[0] not in _INDIFFERENT


def _finalized(cls: type) -> bool:
    if issubclass(cls, GeneratorType) or str(cls.__module__).partition(".")[0] in _INDIFFERENT:
        return False
    return any("__del__" in vars(base) for base in cls.__mro__)
