"""Prevents torch from importing sympy, 0.3 s of CPU, where no size is a symbol.

Meta functions import torch's module for symbolic sizes, and sympy with it, to evaluate conditions. For plain bools and
ints its answer is Python's, and lazytpu's own symbolic sizes answer by themselves. So a stand-in answers these calls.
It imports the module for any other attribute, and for torch's own symbols; Dynamo imports it when it is imported.

The function that infers the dtype of a pointwise result imports sympy to test whether an argument is an expression.
While sympy is not imported, no argument is.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from operator import and_, or_
from types import ModuleType
from typing import Any, cast

import torch

from lazytpu.frontend.libraries.on_import import when_imported
from lazytpu.frontend.torch_private import SYMBOLIC_SHAPES, promoted_dtypes

_PARENT, _, _CHILD = SYMBOLIC_SHAPES.rpartition(".")
_loading = threading.Lock()


def install() -> None:
    """Install the stand-in, unless the module or sympy is imported already."""
    if SYMBOLIC_SHAPES in sys.modules or "sympy" in sys.modules:
        return
    _ask_no_expressions()
    spec = find_spec(SYMBOLIC_SHAPES)
    if spec is None:
        return
    stand_in = _StandIn(SYMBOLIC_SHAPES)
    stand_in.__file__ = spec.origin  # `inspect` reads it from all modules
    sys.modules[SYMBOLIC_SHAPES] = stand_in
    setattr(sys.modules[_PARENT], _CHILD, stand_in)


def _ask_no_expressions() -> None:
    """Until sympy is imported, let the dtype function test for a class of torch instead, whose instances are numbers
    and handled before.

    Other modules refer to the function, so it stays and its code is replaced.
    """
    code = promoted_dtypes.__code__
    if {"sympy", "Basic"}.issubset(code.co_names):
        names = {"sympy": "torch", "Basic": "SymInt"}
        promoted_dtypes.__code__ = code.replace(co_names=tuple([names.get(name, name) for name in code.co_names]))
        when_imported("sympy", lambda sympy: setattr(promoted_dtypes, "__code__", code))


class _StandIn(ModuleType):
    """A stand-in for the module, as far as it can answer without importing it.

    Module-level code of other modules gets the real functions, because it keeps them.
    """

    def __getattr__(self, name: str) -> Any:
        plain = _PLAIN.get(name)
        if plain is not None and sys._getframe(1).f_code.co_name != "<module>":
            return plain
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {SYMBOLIC_SHAPES!r} has no attribute {name!r}")
        return _real(name)


def _real(name: str) -> Any:
    with _loading:
        if isinstance(sys.modules.get(SYMBOLIC_SHAPES), _StandIn):
            del sys.modules[SYMBOLIC_SHAPES]
    return getattr(import_module(SYMBOLIC_SHAPES), name)


def _answer(name: str, known: Callable[[Any], bool], answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the module that returns `answer` when all arguments are `known`."""

    def asked(*args: Any, **kwargs: Any) -> Any:
        if not kwargs and all(map(known, args)):
            return answer(*args)
        return _real(name)(*args, **kwargs)

    return asked


def _is_bool(value: Any) -> bool:
    return type(value) is bool or (isinstance(value, torch.SymBool) and _is_own(value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("Sequence[Any]", value)))
    return type(value) in (bool, int) or (isinstance(value, torch.SymInt) and _is_own(value))


def _is_own(size: Any) -> bool:
    """Return whether a symbolic size is lazytpu's own, which answers by itself."""
    return not hasattr(size.node, "shape_env")


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        left, right = cast("Sequence[Any]", x), cast("Sequence[Any]", y)
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(x == y)


_TRUTH = ("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true")
_PLAIN: dict[str, Callable[..., Any]] = {
    **{name: _answer(name, _is_bool, bool) for name in _TRUTH},
    "sym_and": _answer("sym_and", _is_bool, lambda *conditions: reduce(and_, conditions)),
    "sym_or": _answer("sym_or", _is_bool, lambda *conditions: reduce(or_, conditions)),
    "sym_eq": _answer("sym_eq", _is_plain, _equal),
    "is_nested_int": _answer("is_nested_int", _is_plain, lambda size: False),
    "free_unbacked_symbols": _answer("free_unbacked_symbols", _is_plain, lambda *sizes: set[Any]()),
    "has_guarding_hint": _answer("has_guarding_hint", _is_plain, lambda size: True),
    "guarding_hint_or_throw": _answer("guarding_hint_or_throw", _is_plain, lambda size: size),
}
