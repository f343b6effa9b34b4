"""The path of the module that records an op, such as `blocks.2.attn`: found on a miss, like the source line.

Modules are told apart by identity, and their parts found without a call of the model's own methods: a class may define
its equality, or what `named_modules` returns.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from torch import nn

from lazytpu.frontend.torch_private import BACKWARD, MODULE_CALL


class _Known(NamedTuple):
    """The path of a module in the outermost module that was called; for that one, the `root`, the name of its class."""

    module: weakref.ref[nn.Module]
    path: str
    root: bool


_known: dict[int, _Known] = {}
"id(module) -> its path, as long as the module lives."


def module_path() -> str:
    """Return the path of the innermost module whose call is running; empty outside of modules. A backward pass is
    outside of the modules that it was called in.

    Paths begin in the outermost module that is called. That module itself has the name of its class.
    """
    inner, outer = None, None
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not BACKWARD:
        if frame.f_code is MODULE_CALL:
            # Reading the variables keeps the call's arguments alive, which the call does itself (R4).
            outer = frame.f_locals["self"]
            inner = outer if inner is None else inner
        frame = frame.f_back
    if inner is None or outer is None:
        return ""
    if _of(outer) is None or _of(inner) is None:
        _register(outer)
    known = _of(inner)
    return type(inner).__name__ if known is None else known.path


def _of(module: nn.Module) -> _Known | None:
    known = _known.get(id(module))
    return known if known is not None and known.module() is module else None


def _register(outer: nn.Module) -> None:
    """Store the paths of a module that was called outside of others, and of all in it. A part of a known model keeps
    its path there; the parts of a new model get theirs, even if they were called by themselves before."""
    known = _of(outer)
    prefix = "" if known is None or known.root else f"{known.path}."
    for name, module in _parts(outer, "", set()):
        path = name.removeprefix("_orig_mod").removeprefix(".").replace("/", ":")  # torch.compile wraps the model
        path = (prefix + path).rstrip(".") or type(module).__name__
        reference = weakref.ref(module, partial(_forget, id(module)))
        _known[id(module)] = _Known(reference, path, module is outer and not prefix)


def _parts(module: nn.Module, name: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and those in it with their names, each once."""
    if id(module) in seen:
        return
    seen.add(id(module))
    yield name, module
    for child, part in module._modules.items():
        if part is not None:
            yield from _parts(part, f"{name}.{child}" if name else child, seen)


def _forget(key: int, reference: weakref.ref[nn.Module]) -> None:
    """Remove a module that has ended, unless its id belongs to a newer one."""
    known = _known.get(key)
    if known is not None and known.module is reference:
        del _known[key]
