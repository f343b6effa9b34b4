"""The variables, lists and attributes that hold tensors, found by searching Python's objects backwards.

A search walks level by level: from the tensors to the objects that refer to them, and so on, until each path reaches a
name. A level is one pass over all objects that the garbage collector knows, however many tensors there are.
"""

from __future__ import annotations

import gc
import re
import sys
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_OPTIMIZED
from itertools import chain
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

from lazytpu.frontend import observed
from lazytpu.frontend.lines import is_library
from lazytpu.frontend.observed import is_a, items

LEVELS = 6
"""The most objects between a tensor and a name."""
_SEQUENCES = (list, tuple, deque)
_SUSPENDED = {GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame"}
_GENERATORS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_ATTRIBUTE = re.compile(r"\.__dict__\['(\w+)'\]")


def holders(tensors: Sequence[Any], hidden: Collection[int]) -> dict[int, str]:
    """Return the path to each tensor by its id, such as `losses[3]`, `Trainer.history['loss'][3]` or
    `kept[0] in train()`. Tensors that no name leads to are left out.

    `hidden` are the ids of containers that the caller has made.
    """
    variables, running = _variables(), {id(frame) for frame in _running()}
    # The garbage collector does not find objects that `gc.freeze()` hides from it.
    values = (value for _, _, value in variables.values()) if gc.get_freeze_count() else ()
    frozen = [value for value in values if gc.is_tracked(value)]
    found: dict[int, str] = {}
    names: dict[int, str] = {}  # of tensors that are variables themselves: a list that keeps them matters more
    level: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    paths = {key: {key: ""} for key in level}  # id of an object of the level -> tails of its new paths, by tensor
    seen = {key: {key} for key in level}  # id of an object -> tensors with a path through it
    for depth in range(LEVELS):
        # Take the names of objects that are variables of running functions and modules.
        for key, tails in paths.items():
            name, where, _ = variables.get(key, ("", "", None))
            for tensor, tail in tails.items() if name else ():
                (found if depth else names).setdefault(tensor, f"{name}{tail}{where}")
        # Go on to the objects that refer to the remaining ones.
        paths = {key: {t: tail for t, tail in tails.items() if t not in found} for key, tails in paths.items()}
        paths = {key: tails for key, tails in paths.items() if tails}
        excluded = {id(level), id(tensors), id(frozen), *map(id, variables.values()), *running, *hidden}
        level, above, further = {}, paths, dict[int, dict[int, str]]()
        excluded.add(id(level))
        for referrer in _referrers(above.keys(), frozen) if above else ():
            # The variables of running functions and of modules are known.
            is_namespace = is_a(referrer, dict) and "__builtins__" in dict.keys(referrer)
            if is_namespace or issubclass(type(referrer), ModuleType) or id(referrer) in excluded:
                continue
            tails, passed = dict[int, str](), seen.get(id(referrer), ())
            for child, label, is_name in _children(referrer):
                for tensor, tail in above.get(id(child), {}).items():
                    if is_name:
                        found.setdefault(tensor, label + tail)
                    elif tensor not in passed:
                        tails.setdefault(tensor, label + tail)
            if tails:
                level[id(referrer)], further[id(referrer)] = referrer, tails
                seen.setdefault(id(referrer), set()).update(tails)
        paths = further
    return {tensor: _ATTRIBUTE.sub(r".\1", path) for tensor, path in (names | found).items()}


def _referrers(wanted: Collection[int], frozen: Collection[Any]) -> list[Any]:
    """Return the objects that refer to one whose id is wanted. `gc.get_referrers` would compare each reference with
    each wanted object."""
    wanted = frozenset(wanted)
    things = chain(gc.get_objects(), frozen)
    return [thing for thing in things if not wanted.isdisjoint(map(id, gc.get_referents(thing)))]


def _children(thing: Any) -> Iterator[tuple[Any, str, bool]]:
    """Yield the objects to which a container, namespace, closure, class, suspended or ended function, or other
    object refers, each with a label, and whether that is a whole name."""
    kind = type(thing)
    if is_a(thing, dict):
        for key, value in list(dict.items(thing)):
            yield value, f"[{key!r}]" if type(key) in (str, int) else "[…]", False
    elif sequence := next((base for base in _SEQUENCES if issubclass(kind, base)), None):
        yield from ((value, f"[{index}]", False) for index, value in enumerate(list(sequence.__iter__(thing))))
    elif kind in (set, frozenset, CellType):
        yield from ((value, "", False) for value in gc.get_referents(thing))
    elif kind is FunctionType:
        yield thing.__closure__, f"{thing.__qualname__}()", True
    elif issubclass(kind, type):
        name = observed.qualified_name(thing)
        yield from ((names, f"{name}.__dict__", True) for names in gc.get_referents(thing) if type(names) is dict)
    elif kind in _SUSPENDED:
        if (frame := getattr(thing, _SUSPENDED[kind])) is not None:
            yield from _locals(frame, f" in {frame.f_code.co_name}(), which is suspended")
    elif kind is FrameType:
        if not thing.f_code.co_flags & _GENERATORS:
            yield from _locals(thing, f" in {thing.f_code.co_name}(), which has ended (a traceback keeps it)")
    else:
        yield from ((value, f"{observed.plain_name(kind)}.{name}", True) for name, value in _attributes(thing))


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, and its `__dict__`, without calling the methods of its class."""
    for base in observed.bases(type(thing)):
        for name, member in _entries(dict(observed.namespace(base))):
            kind = type(member)
            is_namespace = kind is GetSetDescriptorType and name == "__dict__"
            # A class may have another class's descriptor, and a property for its `__dict__`.
            if not (is_namespace or kind is MemberDescriptorType) or not is_a(thing, member.__objclass__):
                continue
            try:
                value = member.__get__(thing)
            except AttributeError:  # a slot without a value
                continue
            yield name, value
            if is_namespace:
                yield from _entries(value)


def _entries(names: Any) -> list[tuple[str, Any]]:
    """Return the entries of a dict whose keys are names; nothing for another mapping, whose methods may do anything."""
    return [(name, value) for name, value in items(names) if type(name) is str]


def _named(frame: FrameType, variables: Any) -> list[tuple[str, Any]]:
    """Return the variables of a frame. A function's are a dict, or a proxy from Python 3.13 on; those of a class's body
    or of `exec` may be any mapping."""
    return _entries(dict(variables) if frame.f_code.co_flags & CO_OPTIMIZED else variables)


def _locals(frame: FrameType, where: str) -> Iterator[tuple[Any, str, bool]]:
    """Yield the variables of a function that does not run, as `_children` does."""
    variables = frame.f_locals
    yield from [(value, name + where, True) for name, value in _named(frame, variables)]
    _release(frame, variables)


def _running() -> Iterator[FrameType]:
    """Yield the frames of the running functions of all threads."""
    pending: list[FrameType | None] = list(sys._current_frames().values())
    while pending:
        frame = pending.pop()
        while frame is not None:
            yield frame
            frame = frame.f_back


def _variables() -> dict[int, tuple[str, str, Any]]:
    """Return the variables of running functions and of modules, and of the classes that are among them: the id of each
    value -> its name, the function, and the value."""
    found: dict[int, tuple[str, str, Any]] = {}

    def add(names: list[tuple[str, Any]], module: Any, prefix: str, where: str) -> None:
        for key, value in names:
            found.setdefault(id(value), (prefix + key, where, value))
            members = dict(observed.namespace(value)) if issubclass(type(value), type) else {}
            defined_in = members.get("__module__")  # a class may have none, or any object
            if type(defined_in) is type(module) is str and defined_in == module:
                for name, attribute in _entries(members):
                    found.setdefault(id(attribute), (f"{prefix}{key}.{name}", where, attribute))

    for frame in _running():
        if not is_library(frame.f_code.co_filename):
            function = frame.f_code.co_name
            variables = frame.f_locals
            where = "" if function == "<module>" else f" in {function}()"
            add(_named(frame, variables), dict.get(frame.f_globals, "__name__"), "", where)
            _release(frame, variables)
    for name, module in _entries(sys.modules):
        names: dict[str, Any] = observed.module_namespace(module) if is_a(module, ModuleType) else {}
        file = names.get("__file__")
        if not is_library(file if type(file) is str else ""):
            add(_entries(names), name, "" if name == "__main__" else f"{name}.", "")
    return found


def _release(frame: FrameType, variables: Any) -> None:
    """Take a function's variables out of a copy of them, which would keep them alive as long as the function runs.

    Before Python 3.13 a frame keeps the copy, and brings it up to date at each use. It may also have variables that
    `exec` has made there, which stay. So does all of a copy that the program holds, as by `locals()`, or that a
    debugger or profiler writes back to the function.
    """
    is_copy = type(variables) is dict and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(variables) <= 4
    if is_copy and frame.f_trace is None and sys.gettrace() is None and sys.getprofile() is None:
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            variables.pop(name, None)
