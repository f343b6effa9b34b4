"""Callbacks on the import of a module: `when_imported(name, act)` does not import it.

So support for other libraries costs only the programs that use them. Other programs pay one dictionary look-up per
import.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from lazytpu.versions import UncheckedVersionWarning, minor

Act = Callable[[ModuleType], None]

_waiting: dict[str, list[Act]] = {}


def when_imported(name: str, act: Act) -> None:
    """Call `act(module)` right after the module `name` has been executed: now, if that has happened already."""
    module = sys.modules.get(name)
    spec: Any = getattr(module, "__spec__", None)
    if module is not None and not getattr(spec, "_initializing", False):
        _perform(act, module)
        return
    _waiting.setdefault(name, []).append(act)
    if module is not None:  # it imports torch, and torch imports this
        spec.__class__ = _Loading
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def _perform(act: Act, module: ModuleType) -> None:
    """Call `act`, warning on AttributeError: an import must not fail because an unchecked release lacks a patched
    attribute."""
    try:
        act(module)
    except AttributeError as error:
        warnings.warn(
            f"lazytpu could not adapt {module.__name__}: {error}. What it offers may not know the device. "
            "The releases that were checked are listed in lazytpu.versions.CHECKED.",
            UncheckedVersionWarning,
            stacklevel=2,
        )


class _Loading(ModuleSpec):
    """The specification of a module that is being executed; Python sets its `_initializing` to false at the end."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            spec: Any = self
            spec.__class__ = ModuleSpec
            module = sys.modules.get(self.name)
            if module is not None:
                for act in _waiting.pop(self.name, ()):
                    _perform(act, module)


class _Finder(MetaPathFinder):
    """A finder that delegates to the finders after it, and makes the loader of an awaited module call back at the end.

    A module may be searched for and not imported: libraries check in this way whether another one is installed.
    """

    def __init__(self) -> None:
        self.searching: set[tuple[int, str]] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        search = (threading.get_ident(), fullname)
        if fullname not in _waiting or search in self.searching:
            return None
        self.searching.add(search)
        try:
            spec = find_spec(fullname)
        finally:
            self.searching.discard(search)
        loader: Any = None if spec is None else spec.loader
        if loader is not None and hasattr(loader, "exec_module"):
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # restores the method of the loader's class
                execute(module)
                for act in _waiting.pop(fullname, ()):
                    _perform(act, module)

            loader.exec_module = exec_module
        return spec


_FINDER = _Finder()


def warn_unchecked(library: str, version: str, checked: tuple[str, ...]) -> None:
    """Warn unless `version` belongs to one of the releases `checked` ("1.15" covers 1.15.0 and 1.15.3)."""
    if minor(version) not in checked:
        warnings.warn(
            f"{library} is {version}; lazytpu's support for it was checked against {', '.join(checked)}. If it does "
            "not find the device or misbehaves there, install one of these.",
            UncheckedVersionWarning,
            stacklevel=2,
        )
