"""What a function's code names: globals, attributes, and the functions it calls in the user's own files."""

from __future__ import annotations

import dis
import functools
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

import torch

_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        os.path.dirname(torch.__file__),
        os.path.join(os.path.dirname(__file__), os.pardir),
    )
)


@functools.cache
def in_library(filename: str | None) -> bool:
    """Whether a file belongs to Python, an installed package, torch or lazytpu: code that is not the user's."""
    return filename is None or filename.startswith("<frozen") or os.path.realpath(filename).startswith(_LIBRARIES)


@functools.cache
def is_library_module(name: Any) -> bool:
    """The same for a module by its name."""
    module = sys.modules.get(name) if isinstance(name, str) else None
    return module is None or (name != "__main__" and in_library(getattr(module, "__file__", None)))


@functools.cache
def names_of(code: types.CodeType) -> frozenset[str]:
    """Globals and attributes that the code names, those of functions defined in it included."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_of(constant)
    return frozenset(found)


@functools.cache
def globals_of(code: types.CodeType) -> frozenset[str]:
    """The globals among them: an attribute may have the name of a global that is another thing."""
    found = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= globals_of(constant)
    return frozenset(found)


def methods_of(kind: type, names: set[str]) -> Iterator[types.FunctionType]:
    """The functions of a user's class that code with these names may call."""
    for cls in kind.__mro__:
        if is_library_module(cls.__module__):
            continue
        for name, member in vars(cls).items():
            member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if isinstance(member, types.FunctionType) and (name in names or name in ("forward", "__call__")):
                yield member


def class_values(kind: type, names: set[str]) -> Iterator[tuple[type, str, Any]]:
    """The plain values on a user's class that code with these names may read: (class, name, value)."""
    for cls in kind.__mro__:
        if not is_library_module(cls.__module__):
            for name, member in vars(cls).items():
                if name in names and type(member) in SIMPLE:
                    yield cls, name, member


SIMPLE = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.memory_format,
     torch.layout, range, type, types.BuiltinFunctionType, types.EllipsisType}
)  # fmt: skip
