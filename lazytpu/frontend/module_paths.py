"""The path of the module that records an op, such as `blocks.2.attn`: found on a miss, like the source line."""

from __future__ import annotations

import sys
from weakref import WeakKeyDictionary, WeakSet

from torch import nn

from lazytpu.frontend.torch_private import BACKWARD, MODULE_CALL

_roots: WeakSet[nn.Module] = WeakSet()
_paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
"Module -> its path in the outermost module that was called; for that one, in `_roots`, the name of its class."


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
    if outer not in _paths or inner not in _paths:
        _register(outer)
    return _paths.get(inner) or type(inner).__name__


def _register(outer: nn.Module) -> None:
    """Store the paths of a module that was called outside of others, and of all in it. A part of a known model keeps
    its path there; the parts of a new model get theirs, even if they were called by themselves before."""
    prefix = "" if outer in _roots or outer not in _paths else f"{_paths[outer]}."
    for name, module in outer.named_modules():
        name = name.removeprefix("_orig_mod").removeprefix(".").replace("/", ":")  # torch.compile wraps the model
        _roots.discard(module)
        _paths[module] = (prefix + name).rstrip(".") or type(module).__name__
    if not prefix:
        _roots.add(outer)
