"""The reads of a walk through captured state. While repeated reads return the same objects, the walk's result is
valid."""

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
    """Reads variables, containers and objects, and records the results."""

    def __init__(self) -> None:
        self._objects: list[tuple[Callable[[Any], Any], Any, Any]] = []
        self._items: list[tuple[Callable[[Any], list[Any]], Any, tuple[Any, ...]]] = []
        self._contents: list[tuple[Callable[[Any], Any], Any, Any]] = []

    def same(self) -> bool:
        """Whether each read returns the same objects again, and each array the same contents. It runs once per call."""
        try:
            for read, holder, previous in self._objects:
                if read(holder) is not previous:
                    return False
            for listed, holder, items in self._items:
                now = listed(holder)
                if len(now) != len(items) or not all(map(is_, now, items)):
                    return False
            for read, holder, contents in self._contents:
                if read(holder) != contents:
                    return False
        except Exception:  # noqa: BLE001    (a new walk raises the same error, and reports it)
            return False
        return True

    def read(self, read: Callable[[Any], Any], holder: Any) -> Any:
        """Return `read(holder)`, and record it for comparison by identity."""
        result = read(holder)
        self._objects.append((read, holder, result))
        return result

    def cell(self, cell: Any) -> list[Any]:
        """Return the content of a closure's cell as a list, empty while it is not assigned."""
        return self._found(_cell_contents, cell, ValueError)

    def named(self, variables: dict[str, Any], names: frozenset[str]) -> list[tuple[str, Any]]:
        """Return the variables of these names."""
        present = [(name, variables[name]) for name in sorted(names & variables.keys())]
        for name, value in present:
            self._objects.append((variables.__getitem__, name, value))
        absent = names.difference([name for name, _ in present])
        if absent:
            self._objects.append((variables.keys().isdisjoint, absent, True))
        return present

    def attributes(self, value: Any) -> list[tuple[str, Any]]:
        """Return the attributes in an object's `__dict__` and in its slots."""
        instance_dict = getattr(value, "__dict__", None)
        pairs: list[tuple[str, Any]] = []
        if instance_dict is not None:
            self._objects.append((_attributes, value, instance_dict))
            pairs = self.pairs(instance_dict)
        for base in type(value).__mro__:
            for name, member in vars(base).items() if "__slots__" in vars(base) else ():
                if isinstance(member, MemberDescriptorType):
                    pairs += [(name, slot) for slot in self._found(member.__get__, value, AttributeError)]
        return pairs

    def bases(self, kind: type) -> tuple[type, ...]:
        """Return the classes of a class's MRO."""
        return self.read(_bases, kind)

    def members(self, kind: type) -> list[tuple[str, Any]]:
        """Return the attributes that a class itself defines."""
        return self._pairs_of(vars(kind), vars(kind).keys(), vars(kind).values())

    def pairs(self, mapping: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        """Return the items of a mapping."""
        if type(mapping) in _DICTS:
            return self._pairs_of(mapping, mapping.keys(), mapping.values())
        pairs = list(mapping.items())  # as its class defines them
        self._items.append((_flat, mapping, tuple([element for pair in pairs for element in pair])))
        return pairs

    def items(self, container: Any) -> list[Any]:
        """Return the items of a list, a tuple, a deque, a set or an array of objects."""
        listed = _elements if isinstance(container, np.ndarray) else list
        elements = listed(container)
        if type(container) not in _FIXED:
            self._items.append((listed, container, tuple(elements)))
        return elements

    def contents(self, read: Callable[[Any], Any], value: Any) -> Any:
        """Return `read(value)`, and record it for comparison by equality."""
        result = read(value)
        self._contents.append((read, value, result))
        return result

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
        names = tuple([key for key, _ in pairs])
        if all(type(key) is str for key in names):
            self._contents.append((tuple, keys, names))  # the faster comparison
        else:
            self._items.append((list, keys, names))
        self._items.append((list, values, tuple([value for _, value in pairs])))
        return pairs


def _flat(mapping: Mapping[Any, Any]) -> list[Any]:
    return [element for pair in mapping.items() for element in pair]


def _elements(array: Any) -> list[Any]:
    return list(array.ravel())
