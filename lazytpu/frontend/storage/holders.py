"""The variables, lists and attributes that hold tensors, found by searching Python's objects backwards.

A search walks level by level: from the tensors to the objects that refer to them, and so on, until each path reaches a
name. One level takes as long as a pass of the garbage collector, however many tensors there are.
"""

from __future__ import annotations

import gc
import re
import sys
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from inspect import CO_OPTIMIZED
from types import CellType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from lazytpu.frontend.lines import is_library
from lazytpu.frontend.observed import is_a

LEVELS = 6
"""The most objects between a tensor and a name."""
_SEQUENCES = (list, tuple, deque)
_ATTRIBUTE = re.compile(r"\.__dict__\['(\w+)'\]")


def holders(tensors: Sequence[Any], hidden: Collection[int]) -> dict[int, str]:
    """Return the path to each tensor by its id, such as `losses[3]`, `Trainer.history['loss'][3]` or
    `kept[0] in train()`. Tensors that no name leads to are left out.

    `hidden` are the ids of containers that the caller has made.
    """
    variables = _variables()
    # The garbage collector does not find objects that `gc.freeze()` hides from it.
    frozen = [value for _, _, value in variables.values()] if gc.get_freeze_count() else []
    found: dict[int, str] = {}
    paths = {id(tensor): {id(tensor): ""} for tensor in tensors}  # id of an object -> tails of paths through it
    names: dict[int, str] = {}  # of tensors that are variables themselves: a list that keeps them matters more
    level: list[Any] = list(tensors)
    for depth in range(LEVELS):
        # Take the names of objects that are variables of running functions and modules.
        for thing in level:
            name, where, _ = variables.get(id(thing), ("", "", None))
            for tensor, tail in paths[id(thing)].items() if name else ():
                (found if depth else names).setdefault(tensor, f"{name}{tail}{where}")
        # Go on to the objects that refer to the remaining ones.
        level = [thing for thing in level if not found.keys() >= paths[id(thing)].keys()]
        within, following = {id(thing) for thing in level}, dict[int, Any]()
        own = {id(level), id(tensors), id(following), id(frozen), *map(id, variables.values()), *hidden}
        for referrer in (*gc.get_referrers(*level), *frozen) if level else ():
            # The variables of functions and modules are known.
            is_namespace = is_a(referrer, dict) and "__builtins__" in dict.keys(referrer)
            if is_namespace or issubclass(type(referrer), FrameType | ModuleType):
                continue
            if id(referrer) in own or id(referrer) in paths:
                continue
            tails: dict[int, str] = {}
            for child, label, is_name in _children(referrer):
                for tensor, tail in paths[id(child)].items() if id(child) in within else ():
                    if is_name:
                        found.setdefault(tensor, label + tail)
                    else:
                        tails.setdefault(tensor, label + tail)
            if tails:
                following[id(referrer)] = referrer
                paths[id(referrer)] = tails
        level = list(following.values())
    return {tensor: _ATTRIBUTE.sub(r".\1", path) for tensor, path in (names | found).items()}


def _children(thing: Any) -> Iterator[tuple[Any, str, bool]]:
    """Yield the objects to which a container, namespace, closure or other object refers, each with a label, and whether
    that is a whole name."""
    kind = type(thing)
    if is_a(thing, dict):
        for key, value in list(dict.items(thing)):
            yield value, f"[{key!r}]" if type(key) in (str, int) else "[…]", False
    elif sequence := next((base for base in _SEQUENCES if issubclass(kind, base)), None):
        yield from ((value, f"[{index}]", False) for index, value in enumerate(sequence.__iter__(thing)))
    elif kind in (set, frozenset):
        yield from ((value, "", False) for value in thing)
    elif kind is CellType:
        yield thing.cell_contents, "", False
    elif kind is FunctionType:
        yield thing.__closure__, f"{thing.__qualname__}()", True
    else:
        yield from ((value, f"{kind.__name__}.{name}", True) for name, value in _attributes(thing))


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, and its `__dict__`, without calling the methods of its class."""
    try:
        namespace = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        namespace = {}
    yield from list(namespace.items())
    yield "__dict__", namespace
    for base in type(thing).__mro__:
        for name, member in vars(base).items():
            if type(member) is MemberDescriptorType:
                try:
                    yield name, member.__get__(thing)
                except AttributeError:  # a slot without a value
                    continue


def _variables() -> dict[int, tuple[str, str, Any]]:
    """Return the variables of running functions and of modules: the id of each value -> its name, the function, and the
    value."""
    found: dict[int, tuple[str, str, Any]] = {}
    pending: list[FrameType | None] = list(sys._current_frames().values())
    while pending:
        frame = pending.pop()
        while frame is not None:  # a variable that kept this function's own frame would be a cycle
            if not is_library(frame.f_code.co_filename):
                function = frame.f_code.co_name
                where = "" if function == "<module>" else f" in {function}()"
                variables = frame.f_locals
                found.update((id(value), (name, where, value)) for name, value in variables.items())
                _release(frame, variables)
            frame = frame.f_back
    for name, module in list(sys.modules.items()):
        if is_a(module, ModuleType) and not is_library(str(vars(module).get("__file__", ""))):
            prefix = "" if name == "__main__" else f"{name}."
            for key, value in list(vars(module).items()):
                found.setdefault(id(value), (prefix + key, "", value))
    return found


def _release(frame: FrameType, variables: Any) -> None:
    """Empty a copy of a function's variables, which would keep them alive as long as the function runs. Before Python
    3.13 a frame keeps the copy; if the program holds it too, as by `locals()`, it stays."""
    if type(variables) is dict and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(variables) <= 4:
        variables.clear()
