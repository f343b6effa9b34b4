"""What a function captures: the variables of its closure, the globals that it reads, and attributes that it reads of
either.

They are part of a kernel like its static arguments: a changed one is another kernel. A function that changes them while
it is traced has a side effect.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from lazytpu.frontend.recording.keys import exact
from lazytpu.kernels import errors

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset)
_CONTENTS = (*_PLAIN, *_CONTAINERS, np.ndarray)
"What is compared by its contents: it may be changed in place, or is equal to another object."


@dataclass(frozen=True)
class Read:
    """A variable, as a cell, as a name in a dict of globals, or as an object, and the attributes read of it."""

    name: str
    root: Any
    attributes: tuple[str, ...] = ()

    def value(self) -> Any:
        """What it is now; None if it does not exist."""
        try:
            if isinstance(self.root, CellType):
                value = self.root.cell_contents
            else:
                value = self.root[self.name] if isinstance(self.root, dict) else self.root
            for attribute in self.attributes:
                value = getattr(value, attribute)
        except (AttributeError, KeyError, ValueError):  # a cell is not assigned yet
            return None
        return value

    def __str__(self) -> str:
        return ".".join((self.name, *self.attributes))


class Captured:
    """The captured variables of a function."""

    def __init__(self, reads: list[Read]) -> None:
        self.reads = reads

    def now(self) -> tuple[Any, ...]:
        """Their values, as part of a key: numbers, texts, containers and numpy arrays by what they hold, everything
        else by identity."""
        return tuple([_key(read.value()) for read in self.reads]) if self.reads else ()

    @contextmanager
    def unchanged(self, name: str) -> Generator[None]:
        """Raise RuntimeError when the block assigns one. What it adds to a container is not noticed."""
        before = self._assigned()
        yield
        after = self._assigned()
        if before != after:
            changed = [str(r) for r, one, other in zip(self.reads, before, after, strict=True) if one != other]
            raise errors.side_effect(name, f"it changes {', '.join(changed)}")

    def _assigned(self) -> list[Any]:
        values = [read.value() for read in self.reads]
        return [exact(value) if isinstance(value, _PLAIN) else _Same(value) for value in values]


def of(function: Callable[..., Any]) -> Captured:
    """What a function captures, and the functions that it calls from its closure and its module."""
    reads: dict[Any, Read] = {}
    _collect(function, reads, set())
    return Captured(list(reads.values()))


def _collect(function: Any, reads: dict[Any, Read], seen: set[int]) -> None:
    """Add what `function`, a function of Python or a wrapper of one, reads."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, MethodType):
        _collect_code(function.__func__, function.__self__, reads, seen)
        return
    inner = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
    if inner is not None:
        _collect(inner, reads, seen)
    elif isinstance(function, FunctionType):
        _collect_code(function, None, reads, seen)


def _collect_code(function: Any, owner: Any, reads: dict[Any, Read], seen: set[int]) -> None:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name, cell in cells.items():
        _note(Read(name, cell), reads, function, seen)
    for kind, name, attributes in _loads(function.__code__):
        if kind == "global" and name in function.__globals__:
            root = function.__globals__
        elif kind == "deref" and name in cells:
            root = cells[name]
        elif kind == "fast" and owner is not None and name == next(iter(function.__code__.co_varnames), None):
            root = owner
        else:
            continue
        for end in range(len(attributes) + 1):
            read = Read(name, root, attributes[:end])
            value = read.value()
            if isinstance(value, _CONTENTS) or end == len(attributes):
                _note(read, reads, function, seen)
                break


def _note(read: Read, reads: dict[Any, Read], function: Any, seen: set[int]) -> None:
    """Add a variable, and what the function in it reads. Modules do not change, nor do functions of other libraries."""
    value = read.value()
    own = getattr(value, "__module__", None) == function.__module__
    in_closure = isinstance(read.root, CellType) and not read.attributes
    if isinstance(value, ModuleType) or (callable(value) and not own and not in_closure):
        return
    reads.setdefault((read.name, id(read.root), read.attributes), read)
    if isinstance(value, FunctionType | MethodType | functools.partial):
        _collect(value, reads, seen)


def _loads(code: CodeType) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(kind, name, attributes) of each variable that code, and the functions in it, load."""
    instructions = list(dis.get_instructions(code))
    for i, instruction in enumerate(instructions):
        kind = instruction.opname.removeprefix("LOAD_").partition("_")[0].lower()
        if instruction.opname.startswith(("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_FAST")):
            attributes: list[str] = []
            for following in instructions[i + 1 :]:
                if following.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    break
                attributes.append(following.argval)
            yield kind, str(instruction.argval), tuple(attributes)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loads(constant)


@dataclass(frozen=True, eq=False)
class _Same:
    """An object, equal to itself only. It is kept, so that no other object gets its address."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _key(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return exact(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return dict, tuple([(_key(name), _key(item)) for name, item in value.items()])
    if isinstance(value, list | tuple):
        return type(value), tuple([_key(item) for item in value])
    if isinstance(value, set | frozenset):
        return type(value), frozenset([_key(item) for item in value])
    return _Same(value)
