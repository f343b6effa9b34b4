"""The walk through the variables that a function captures; `lazytpu.kernels.captured` has its rules."""

from __future__ import annotations

import datetime
import functools
import itertools
import re
import sys
import threading
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from decimal import Decimal
from operator import attrgetter
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GenericAlias,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from lazytpu.frontend.names import values_of
from lazytpu.frontend.recording.keys import exact
from lazytpu.kernels.capture_reads import Reads
from lazytpu.trace.value import Value

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_PLAIN = frozenset(PLAIN)
_SEQUENCES = (list, tuple, deque)
_BYTES = (bytearray, memoryview, array)
_CONTENTS = (*PLAIN, *_BYTES, *_SEQUENCES, dict, set, frozenset, MappingProxyType, np.ndarray, np.generic)
"""Classes whose objects count by contents, wherever they are held."""
_EXACT = frozenset((*_CONTENTS, OrderedDict, defaultdict))
"""Classes whose objects have no other state than their contents."""
_BOUND = BuiltinFunctionType, MethodWrapperType
"""Methods implemented in C, whose object may change."""
_SETTINGS = (defaultdict, attrgetter("default_factory")), (deque, attrgetter("maxlen"))
_STABLE = (
    *(range, slice, type(Ellipsis), type(NotImplemented), CodeType, property, staticmethod, classmethod),
    *(functools.cached_property, type(threading.Lock()), type(threading.RLock()), type(datetime.datetime_CAPI)),
    *(WrapperDescriptorType, MemberDescriptorType, GetSetDescriptorType),
)
"""Classes whose objects do not change."""
_SHOWING = (
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, Decimal, re.Pattern, re.Match),
    *(MethodDescriptorType, ClassMethodDescriptorType, GenericAlias, UnionType, functools.partial, threading.local),
)
"""Classes of the standard library in C whose objects do not change, or show their attributes."""
_LIBRARIES = frozenset(("jax", "jaxlib", "numpy", "ml_dtypes", "torch", "lazytpu"))
_COMPUTED = frozenset(("getattr", "vars", "__dict__", "attrgetter", "eval", "exec", "__getattribute__"))
"Names that read attributes whose names the code need not list."
_MAKING = frozenset(("__init__", "__new__", "__del__", "__repr__", "__str__", "__init_subclass__", "__class_getitem__"))
"""Special methods that are never called on an existing object."""
_CALLING = FunctionType, MethodType, functools.partial
_FUNCTION = [attrgetter(name) for name in ("__code__", "__defaults__", "__kwdefaults__")]
_PARTIAL = [attrgetter(name) for name in ("func", "args", "keywords")]
_RANDOM = ("Random", "SystemRandom", "RandomState", "Generator")
UNREAD, MAY_READ, READ = range(3)
"Whether the code reads a value: no name leads to it; it reads attributes by computed names; its name is listed."


class Walk:
    """Collects the `variables` that a function captures: (identity of the holder, name) -> (value, key). `listed` are
    the names known so far, `names` the names in the code of this walk, and `reads` all reads that another walk would
    repeat."""

    def __init__(self, listed: frozenset[str], same: Callable[[Any], Any], refuse: Callable[[str], Exception]) -> None:
        self.listed = listed
        self.names: set[str] = set()
        self.variables: dict[tuple[int, str], tuple[Any, Any]] = {}
        self.reads = Reads()
        self._same = same
        self._refuse = refuse
        self._seen: dict[int, Any] = {}  # by id, kept alive

    def function(self, function: Any, path: str = "") -> None:
        """Note the variables that a callable captures."""
        if id(function) in self._seen or (path and _leads_nowhere(function)):
            return
        self._seen[id(function)] = function
        if isinstance(function, FunctionType):
            self._of_code(function, path != "" and _of_library(function))
        elif isinstance(function, MethodType):
            self.function(function.__func__, path)
            self.note(id(function), "self", function.__self__)
        elif isinstance(function, functools.partial):
            self.function(self.reads.read(_PARTIAL[0], function), path)
            self.note(id(function), f"{path}.args", self.reads.read(_PARTIAL[1], function))
            self.note(id(function), f"{path}.keywords", self.reads.read(_PARTIAL[2], function))
            self._object(function, path, READ)
        else:
            self._object(function, path or type(function).__name__, READ)

    def _of_code(self, function: FunctionType, of_library: bool) -> None:
        code, *defaults = [self.reads.read(part, function) for part in _FUNCTION]
        names = _names(code) if not of_library else frozenset[str]()
        self.names |= names
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            for value in self.reads.cell(cell):
                self.note(id(cell), name, value)
        builtins = vars(sys.modules["builtins"])
        for variables, listed in ((function.__globals__, names), (builtins, names - function.__globals__.keys())):
            for name, value in self.reads.named(variables, listed):
                self.note(id(variables), name, value)
        for values in defaults:
            if values is not None:
                self.note(id(values), f"the defaults of {function.__name__}", values)
        self._attributes(function, function.__name__)

    def note(self, holder: int, name: str, value: Any) -> None:
        """Add a variable that the code may read."""
        if (holder, name) not in self.variables:
            self.variables[holder, name] = value, None  # before the recursion, since the value may lead to itself
            self.variables[holder, name] = value, self._key(value, name, READ)

    def _key(self, value: Any, path: str, read: int) -> Any:
        """Return a key that distinguishes a value from others."""
        kind = type(value)
        if kind in _PLAIN:
            return exact(value)
        if isinstance(value, _STABLE) or id(value) in self._seen:
            return self._same(value)
        if isinstance(value, _BOUND):
            instance_key = isinstance(value.__self__, type | ModuleType | None)
            return self._same(value), None if instance_key else self._key(value.__self__, path, read)
        if not isinstance(value, _CONTENTS):
            if read:
                self._inside(value, path, read)
            instance_key = self.reads.contents(_of_tensor, value) if read and isinstance(value, torch.Tensor) else None
            return self._same(value), instance_key
        if kind not in _EXACT and not issubclass(kind, np.generic):
            self._seen[id(value)] = value
            self.reads.read(type, value)
            self._attributes(value, path)
            self._class(kind)
        return kind, self._contents(value, path, read)

    def _contents(self, value: Any, path: str, read: int) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            form = self.reads.contents(_form, value)
            if not value.dtype.hasobject:
                return form, self.reads.contents(_array_bytes, value)
            if value.dtype != object:
                raise self._refuse(f"{path}, an array of {value.dtype}")
            return form, tuple([self._key(item, f"{path}[...]", read) for item in self.reads.items(value)])
        if isinstance(value, _BYTES):
            return self.reads.contents(_of_bytes, value)
        if isinstance(value, PLAIN):
            base: Any = next(base for base in type(value).__mro__ if base in _PLAIN)
            return base.__repr__(value)
        self._seen[id(value)] = value
        for kind, setting in _SETTINGS:
            if isinstance(value, kind):
                self.note(id(value), f"{path}'s setting", self.reads.read(setting, value))
        if isinstance(value, dict | MappingProxyType):
            pairs = self.reads.pairs(value)
            return tuple([(self._key(k, path, read), self._key(v, f"{path}[{k!r}]", read)) for k, v in pairs])
        keys = [self._key(item, f"{path}[...]", read) for item in self.reads.items(value)]
        return frozenset(keys) if isinstance(value, set | frozenset) else tuple(keys)

    def _inside(self, value: Any, path: str, read: int) -> None:
        """Note the variables in an object, a function, a class or a module. Raises TypeError when the code reads an
        object that does not show its state."""
        if isinstance(value, ModuleType):
            self._seen[id(value)] = value
            names = self.listed if _is_library(value.__name__) else self.listed | {"__getattr__"}
            for name, attribute in self.reads.named(vars(value), names):
                self.note(id(value), f"{path}.{name}", attribute)
        elif isinstance(value, type):
            self._class(value)
            if type(value) is not type:
                self._class(type(value))
        elif isinstance(value, _CALLING):
            self.function(value, path)
        elif not _leads_nowhere(value):
            self._seen[id(value)] = value
            self._object(value, path, read)

    def _object(self, value: Any, path: str, read: int) -> None:
        inner = self.reads.read(_wrapped, value)
        if inner is not None:
            self.function(inner, path)
        kind = self.reads.read(type, value)
        self._attributes(value, path)
        self._class(kind)
        if read is READ and inner is None and _hides_state(kind):
            raise self._refuse(f"{path}, a {kind.__module__}.{kind.__qualname__}")

    def _attributes(self, value: Any, path: str) -> None:
        """Note the attributes of an object."""
        for name, attribute in self.reads.attributes(value):
            self._attribute(id(value), f"{path}.{name}", name, attribute)

    def _attribute(self, holder: int, path: str, name: str, value: Any) -> None:
        read = READ if name in self.listed else UNREAD if _COMPUTED.isdisjoint(self.listed) else MAY_READ
        if (holder, path) not in self.variables:
            self.variables[holder, path] = value, None
            self.variables[holder, path] = value, self._key(value, path, read)

    def _class(self, kind: type) -> None:
        """Note the attributes of an object's classes, except Python's own and other libraries' classes."""
        for base in self.reads.bases(kind) if not _is_library(kind.__module__) else ():
            if id(base) in self._seen or _is_library(base.__module__):
                continue
            self._seen[id(base)] = base
            for name, value in self.reads.members(base):
                path = f"{base.__name__}.{name}"
                special = name.startswith("__") and name.endswith("__")
                if (functions := _functions(value)) or isinstance(value, type):
                    if name in self.listed or (special and name not in _MAKING):
                        self.note(id(base), path, value)
                        for function in functions:
                            self.function(function, path)
                elif not special and not isinstance(value, _STABLE):
                    self._attribute(id(base), path, name, value)


def _wrapped(value: Any) -> Any:
    return getattr(value, "__wrapped__", None)


def _leads_nowhere(function: Any) -> bool:
    """Whether a function belongs to a library, jitted or not, and holds no function of others."""
    inner = _wrapped(function)
    if not isinstance(function, FunctionType) and _is_library(type(function).__module__):
        function, inner = inner, _wrapped(inner)
    return isinstance(function, FunctionType) and inner is None and _of_library(function) and not function.__closure__


def _of_library(function: FunctionType) -> bool:
    return _is_library(function.__globals__.get("__name__"))  # its `__module__` may be copied from the wrapped function


def _form(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.shape


def _array_bytes(array: Any) -> bytes:
    return array.tobytes()


def _of_tensor(tensor: torch.Tensor) -> Any:
    """Return a key of a tensor's contents: its bytes on the CPU; on the device, numbers of its values, which every
    write replaces."""
    value_numbers = tuple([_NUMBERS.setdefault(value, next(_numbers)) for _, value in values_of(tensor)])
    strided = tensor.layout is torch.strided
    form = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()) if strided else tensor.layout
    if value_numbers:
        return form, value_numbers
    if not strided or tensor.device.type != "cpu" or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return form, None if tensor.is_inference() else tensor._version
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return form, plain.view(torch.uint8).numpy().tobytes()


_numbers = itertools.count()
_NUMBERS: WeakKeyDictionary[Value, int] = WeakKeyDictionary()
"""The number of each device value seen so far: a key with the value itself would keep its memory alive."""


def _of_bytes(value: Any) -> tuple[Any, ...]:
    view = memoryview(value)
    return view.format, view.shape, view.tobytes()


def _functions(value: Any) -> list[Any]:
    """Return the functions in a class's attribute: a method, a property, or a cached property."""
    if isinstance(value, FunctionType):
        return [value]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget] if value.fget is not None else []
    return [value.func] if isinstance(value, functools.cached_property) else []


def _hides_state(kind: type) -> bool:
    """Whether an object of a class may change without a change of its attributes."""
    if kind.__name__ in _RANDOM:
        return True
    if _in_python(kind):
        return False
    package = kind.__module__.partition(".")[0]
    return hasattr(kind, "__next__") or (package not in _LIBRARIES and not issubclass(kind, _SHOWING))


_IN_PYTHON: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
_SHOWN = (object, BaseException, SimpleNamespace, *_CONTENTS)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _in_python(kind: type) -> bool:
    """Whether class statements created a class and its bases, except bases without state and containers."""
    in_python = _IN_PYTHON.get(kind)
    if in_python is None:
        in_python = _IN_PYTHON[kind] = all(base in _SHOWN or _is_statement(base) for base in kind.__mro__)
    return in_python


def _is_statement(base: type) -> bool:
    in_c = any(isinstance(member, MethodDescriptorType) for member in vars(base).values())
    return bool(base.__flags__ & _HEAP_TYPE) and not in_c


def _is_library(module: Any) -> bool:
    package = str(module).partition(".")[0]
    return package != "__main__" and (package in _LIBRARIES or package in sys.stdlib_module_names)


_NAMES: dict[int, tuple[CodeType, frozenset[str]]] = {}


def _names(code: CodeType) -> frozenset[str]:
    """Return the names of globals and attributes that code, and the functions in it, load, and strings that may be
    names."""
    entry = _NAMES.get(id(code))
    if entry is None:
        entry = _NAMES[id(code)] = code, frozenset(_all_names(code))
    return entry[1]


def _all_names(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant
