"""Keeps the process's state unchanged while lazytpu imports its libraries: they draw random numbers and set environment
variables when they are imported, which may be in the middle of a seeded script."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

_PYTHON: Any = getattr(random.getstate, "__self__")  # noqa: B009  (the generator behind the module's functions)

_UNBOUND = frozenset(("seed", "sample", "ranf"))
"""Functions that are not methods of numpy's generator. (`random` has such methods.)"""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside the block, this thread draws from other generators in place of the global ones of `random` and numpy, and
    finders of modules that it adds are removed at the end. Other threads draw as usual: no state is saved and restored.
    """
    finders = list(sys.meta_path)
    drawing = [True]
    # numpy imports `random` at its first use, in 10 ms. The functions of `mtrand` are never replaced.
    numpy: Any = getattr(np.random.mtrand.get_state, "__self__")  # noqa: B009
    replaced = [
        *_replace(random, _PYTHON, random.Random(0), drawing),
        *_replace(np.random, numpy, np.random.RandomState(0), drawing),
    ]
    try:
        yield
    finally:
        drawing.clear()
        for module, name, stand_in, function in replaced:
            if vars(module)[name] is stand_in:
                setattr(module, name, function)
        for finder in sys.meta_path[:]:
            if finder not in finders and type(finder).__module__.partition(".")[0] == "xdsl":
                sys.meta_path.remove(finder)


def _replace(module: Any, generator: Any, private: Any, drawing: list[bool]) -> Iterator[tuple[Any, str, Any, Any]]:
    """Let the functions of a global generator draw from `private` in this thread, as long as `drawing` is not empty."""
    thread = threading.get_ident()

    def stand_in_for(function: Any, private_function: Any) -> Any:
        def draw(*args: Any, **kwargs: Any) -> Any:
            return (private_function if drawing and threading.get_ident() == thread else function)(*args, **kwargs)

        return draw

    for name, function in list(vars(module).items()):
        if getattr(function, "__self__", None) is generator or name in _UNBOUND:
            stand_in = stand_in_for(function, getattr(private, name, None) or private.random_sample)
            setattr(module, name, stand_in)
            yield module, name, stand_in, function


@contextmanager
def with_environment(variables: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Add these variables to the environment inside the block, except variables that it has. Yields a dict; at the end
    it receives the variables that the block set, and the environment is restored."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in variables.items() if name not in before})
    changed: dict[str, str] = {}
    try:
        yield changed
    finally:
        changed.update({name: value for name, value in os.environ.items() if before.get(name) != value})
        for name in changed:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]
