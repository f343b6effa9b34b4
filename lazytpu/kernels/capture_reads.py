"""What a walk through captured state read. While each read gives the same again, so would the walk."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter, is_, not_
from types import MemberDescriptorType
from typing import Any

import numpy as np

_DICTS = (dict, OrderedDict, defaultdict)
_FIXED = (tuple, frozenset)
_attributes = attrgetter("__dict__")
_cell_contents = attrgetter("cell_contents")
_bases = attrgetter("__mro__")


class Reads:
    """Reads variables, containers and objects, and notes what it found there."""

    def __init__(self) -> None:
        self._objects: list[tuple[Callable[[Any], Any], Any, Any]] = []
        self._items: list[tuple[Callable[[Any], list[Any]], Any, tuple[Any, ...]]] = []
        self._contents: list[tuple[Callable[[Any], Any], Any, Any]] = []

    def same(self) -> bool:
        """Whether each read gives the same objects again, and each array the same contents. It runs once per call."""
        try:
            for read, holder, found in self._objects:
                if read(holder) is not found:
                    return False
            for listed, holder, items in self._items:
                now = listed(holder)
                if len(now) != len(items) or not all(map(is_, now, items)):
                    return False
            for read, holder, contents in self._contents:
                if read(holder) != contents:
                    return False
        except Exception:  # noqa: BLE001  (whatever it is: another walk meets it again)
            return False
        return True

    def read(self, read: Callable[[Any], Any], holder: Any) -> Any:
        """`read(holder)`, an object that is the same while nobody assigns another."""
        found = read(holder)
        self._objects.append((read, holder, found))
        return found

    def cell(self, cell: Any) -> list[Any]:
        """The content of a closure's cell; none while it is not assigned."""
        return self._found(_cell_contents, cell, ValueError)

    def named(self, variables: dict[str, Any], names: frozenset[str]) -> list[tuple[str, Any]]:
        """The variables of these names."""
        found = [(name, variables[name]) for name in sorted(names & variables.keys())]
        for name, value in found:
            self._objects.append((variables.__getitem__, name, value))
        absent = names.difference([name for name, _ in found])
        if absent:
            self._objects.append((variables.keys().isdisjoint, absent, True))
        return found

    def attributes(self, value: Any) -> list[tuple[str, Any]]:
        """The attributes in an object's `__dict__` and in its slots."""
        held = getattr(value, "__dict__", None)
        pairs: list[tuple[str, Any]] = []
        if held is not None:
            self._objects.append((_attributes, value, held))
            pairs = self.pairs(held)
        for base in type(value).__mro__:
            for name, member in vars(base).items() if "__slots__" in vars(base) else ():
                if isinstance(member, MemberDescriptorType):
                    pairs += [(name, each) for each in self._found(member.__get__, value, AttributeError)]
        return pairs

    def bases(self, kind: type) -> tuple[type, ...]:
        """A class, and those that it inherits from."""
        return self.read(_bases, kind)

    def members(self, kind: type) -> list[tuple[str, Any]]:
        """What a class itself says."""
        return self._pairs_of(vars(kind), vars(kind).keys(), vars(kind).values())

    def pairs(self, mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        """The items of a mapping."""
        if type(mapping) in _DICTS:
            return self._pairs_of(mapping, mapping.keys(), mapping.values())
        pairs = list(mapping.items())  # as its class defines them
        self._items.append((_flat, mapping, tuple([each for pair in pairs for each in pair])))
        return pairs

    def items(self, container: Any) -> list[Any]:
        """The items of a list, a tuple, a deque, a set or an array of objects."""
        listed = _elements if isinstance(container, np.ndarray) else list
        found = listed(container)
        if type(container) not in _FIXED:
            self._items.append((listed, container, tuple(found)))
        return found

    def contents(self, read: Callable[[Any], Any], value: Any) -> Any:
        """`read(value)`, which is compared by what it holds."""
        found = read(value)
        self._contents.append((read, value, found))
        return found

    def _found(self, read: Callable[[Any], Any], holder: Any, absent: type[Exception]) -> list[Any]:
        try:
            return [self.read(read, holder)]
        except absent:

            def is_absent(holder: Any) -> bool:
                try:
                    read(holder)
                except absent:
                    return True
                return False

            self._objects.append((is_absent, holder, True))
            return []

    def _pairs_of(self, mapping: Any, keys: Collection[Any], values: Collection[Any]) -> list[tuple[Any, Any]]:
        pairs = list(mapping.items())
        if not pairs:
            self._objects.append((not_, keys, True))
            return pairs
        found = tuple([key for key, _ in pairs])
        if all(type(key) is str for key in found):
            self._contents.append((tuple, keys, found))  # which is quicker
        else:
            self._items.append((list, keys, found))
        self._items.append((list, values, tuple([value for _, value in pairs])))
        return pairs


def _flat(mapping: Mapping[Any, Any]) -> list[Any]:
    return [each for pair in mapping.items() for each in pair]


def _elements(array: Any) -> list[Any]:
    return list(array.ravel())
