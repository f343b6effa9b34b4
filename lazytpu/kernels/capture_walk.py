"""The walk through what a function captures; `lazytpu.kernels.captured` has its rules."""

from __future__ import annotations

import functools
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lazytpu.frontend.recording.keys import exact

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SEQUENCES = (list, tuple, deque)
_BYTES = (bytearray, memoryview, array)
_CONTENTS = (*PLAIN, *_BYTES, *_SEQUENCES, dict, set, frozenset, MappingProxyType, np.ndarray, np.generic)
"What counts wherever it is held."
_STABLE = (Enum, range, slice, BuiltinFunctionType, WrapperDescriptorType, MethodWrapperType, MemberDescriptorType)
_STABLE = (*_STABLE, GetSetDescriptorType, type(Ellipsis), type(NotImplemented), CodeType)
_STABLE = (
    *_STABLE,
    property,
    staticmethod,
    classmethod,
    functools.cached_property,
    type(threading.Lock()),
    type(threading.RLock()),
)
"What does not change."
_LIBRARIES = frozenset(("jax", "jaxlib", "numpy", "ml_dtypes", "torch", "lazytpu"))
_COMPUTED = frozenset(("getattr", "vars", "__dict__", "attrgetter", "eval", "exec", "__getattribute__"))
"Names that read attributes whose names the code need not list."
_MAKING = frozenset(("__init__", "__new__", "__del__", "__repr__", "__str__", "__init_subclass__", "__class_getitem__"))
"Special methods that nothing calls of an object that is there."
_RANDOM = ("Random", "SystemRandom", "RandomState", "Generator")
UNREAD, MAY_READ, READ = range(3)
"Whether the code reads a value: no name leads to it; it reads attributes by computed names; its name is listed."


class Walk:
    """Collects the `variables` that a function captures: (identity of the holder, name) -> (value, key). `listed` are
    the names known so far; `names` are those of the code that was met."""

    def __init__(self, listed: frozenset[str], same: Callable[[Any], Any], refuse: Callable[[str], Exception]) -> None:
        self.listed = listed
        self.names: set[str] = set()
        self.variables: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._same = same
        self._refuse = refuse
        self._seen: dict[int, Any] = {}  # by id, kept alive

    def function(self, function: Any, path: str = "") -> None:
        """Note what a callable captures."""
        if id(function) in self._seen:
            return
        self._seen[id(function)] = function
        if isinstance(function, FunctionType):
            self._of_code(function, path != "" and _is_library(function.__module__))
        elif isinstance(function, MethodType):
            self.function(function.__func__, path)
            self.note(id(function), "self", function.__self__)
        elif isinstance(function, functools.partial):
            self.function(function.func, path)
            self.note(id(function), f"{path}.args", function.args)
            self.note(id(function), f"{path}.keywords", function.keywords)
        elif (inner := getattr(function, "__wrapped__", None)) is not None:
            self.function(inner, path)
        else:
            del self._seen[id(function)]
            self._inside(function, path or type(function).__name__, READ)

    def _of_code(self, function: FunctionType, of_library: bool) -> None:
        names = _names(function.__code__) if not of_library else frozenset[str]()
        self.names |= names
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                self.note(id(cell), name, cell.cell_contents)
            except ValueError:  # it is not assigned yet
                continue
        for name in sorted(names & function.__globals__.keys()):
            self.note(id(function.__globals__), name, function.__globals__[name])
        for defaults in (function.__defaults__, function.__kwdefaults__):
            if defaults:
                self.note(id(defaults), f"the defaults of {function.__name__}", defaults)
        self._attributes(function, function.__name__)

    def note(self, holder: int, name: str, value: Any) -> None:
        """Add a variable that the code may read."""
        if (holder, name) not in self.variables:
            self.variables[holder, name] = value, None  # it may lead to itself
            self.variables[holder, name] = value, self._key(value, name, READ)

    def _key(self, value: Any, path: str, read: int) -> Any:
        """What tells a value from another one."""
        if isinstance(value, PLAIN):
            return exact(value)
        if isinstance(value, np.generic | np.ndarray) and value.dtype != object:
            return value.dtype, value.shape, value.tobytes()
        if isinstance(value, _BYTES):
            return type(value), bytes(value)
        if isinstance(value, _STABLE):
            return self._same(value)
        if id(value) in self._seen:
            return self._same(value)
        if isinstance(value, _CONTENTS):
            self._seen[id(value)] = value
            own = self._attributes(value, path) if type(value).__module__ not in sys.stdlib_module_names else None
            return type(value), self._contents(value, path, read), own
        if read:
            self._inside(value, path, read)
        return self._same(value)

    def _contents(self, value: Any, path: str, read: int) -> Any:
        if isinstance(value, dict | MappingProxyType):
            pairs = list(value.items())
            return tuple([(self._key(k, path, read), self._key(v, f"{path}[{k!r}]", read)) for k, v in pairs])
        keys = [
            self._key(each, f"{path}[...]", read)
            for each in (value.ravel() if isinstance(value, np.ndarray) else list(value))
        ]
        return frozenset(keys) if isinstance(value, set | frozenset) else tuple(keys)

    def _inside(self, value: Any, path: str, read: int) -> None:
        """Note the variables in an object, a function, a class or a module. Raises TypeError when the code reads one
        that does not show its state."""
        kind = type(value)
        if isinstance(value, FunctionType | MethodType | functools.partial) or hasattr(value, "__wrapped__"):
            self.function(value, path)
            return
        if isinstance(value, type):
            self._class(value)
            return
        self._seen[id(value)] = value
        if isinstance(value, ModuleType):
            for name in sorted(self.listed & vars(value).keys()):
                self.note(id(value), f"{path}.{name}", vars(value)[name])
        else:
            found = self._attributes(value, path)
            self._class(kind)
            if read is READ and _hides_state(kind, found):
                raise self._refuse(f"{path}, a {kind.__module__}.{kind.__qualname__}")

    def _attributes(self, value: Any, path: str) -> bool:
        """Note the attributes of an object; False if it has none."""
        found = False
        for name, attribute in _attributes_of(value):
            found = True
            self._attribute(id(value), f"{path}.{name}", name, attribute)
        return found

    def _attribute(self, holder: int, path: str, name: str, value: Any) -> None:
        read = READ if name in self.listed else UNREAD if _COMPUTED.isdisjoint(self.listed) else MAY_READ
        if (holder, path) not in self.variables:
            self.variables[holder, path] = value, None
            self.variables[holder, path] = value, self._key(value, path, read)

    def _class(self, kind: type) -> None:
        """Note what the classes of an object say that are not Python's or another library's."""
        for base in kind.__mro__:
            if id(base) in self._seen or _is_library(base.__module__):
                continue
            self._seen[id(base)] = base
            for name, value in vars(base).items():
                path = f"{base.__name__}.{name}"
                special = name.startswith("__") and name.endswith("__")
                if (functions := _functions(value)) or isinstance(value, type):
                    if name in self.listed or (special and name not in _MAKING):
                        self.note(id(base), path, value)
                        for function in functions:
                            self.function(function, path)
                elif not special and not isinstance(value, _STABLE):
                    self._attribute(id(base), path, name, value)


def captures_nothing(function: Any) -> bool:
    """Whether a walk from a function would find nothing: many kernels are written so, and are asked in every call."""
    if type(function) is not FunctionType or function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        return False
    return not function.__dict__ and _names(function.__code__).isdisjoint(function.__globals__)


def _functions(value: Any) -> list[Any]:
    """The functions in a class's attribute: a method, a property, a cached one."""
    if isinstance(value, FunctionType):
        return [value]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget] if value.fget is not None else []
    return [value.func] if isinstance(value, functools.cached_property) else []


def _attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes in an object's `__dict__` and in its slots."""
    yield from list((getattr(value, "__dict__", None) or {}).items())
    for base in type(value).__mro__:
        for name, member in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(member, MemberDescriptorType):
                try:
                    yield name, member.__get__(value)
                except AttributeError:  # it is not assigned
                    continue


def _hides_state(kind: type, has_attributes: bool) -> bool:
    """Whether an object of a class may change without a change of its attributes."""
    if kind.__name__ in _RANDOM:
        return True
    package = kind.__module__.partition(".")[0]
    if package in _LIBRARIES:
        return False
    if package in sys.stdlib_module_names and not _in_python(kind):
        return hasattr(kind, "__next__") or (not has_attributes and kind.__hash__ in (object.__hash__, None))
    return not _in_python(kind)


_IN_PYTHON: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
_SHOWN = (object, BaseException, SimpleNamespace, *_CONTENTS)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _in_python(kind: type) -> bool:
    """Whether class statements made a class and its bases, but for those that hold nothing or are containers."""
    known = _IN_PYTHON.get(kind)
    if known is None:
        known = _IN_PYTHON[kind] = all(base in _SHOWN or _is_statement(base) for base in kind.__mro__)
    return known


def _is_statement(base: type) -> bool:
    in_c = any(isinstance(member, MethodDescriptorType) for member in vars(base).values())
    return bool(base.__flags__ & _HEAP_TYPE) and not in_c


def _is_library(module: Any) -> bool:
    package = str(module).partition(".")[0]
    return package != "__main__" and (package in _LIBRARIES or package in sys.stdlib_module_names)


_NAMES: dict[int, tuple[CodeType, frozenset[str]]] = {}


def _names(code: CodeType) -> frozenset[str]:
    """The names that code, and the functions in it, load of globals and of objects, and texts that may be names."""
    known = _NAMES.get(id(code))
    if known is None:
        known = _NAMES[id(code)] = code, frozenset(_all_names(code))
    return known[1]


def _all_names(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant
