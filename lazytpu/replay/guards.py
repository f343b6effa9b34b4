"""The Python state that a captured call depends on, compared with what it was in a few loops of C.

Modules' attributes, parameters and hooks, optimizers' groups and states, lists and dicts, closure cells, globals and
attributes that the code names: entries are compared by identity, and where that fails, plain values by their bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from lazytpu.frontend.torch_private import GLOBAL_HOOKS
from lazytpu.replay.code import SIMPLE
from lazytpu.replay.reach import GRAD, Key, Reach
from lazytpu.replay.results import exactly

_CONTENTS = attrgetter("cell_contents")
_FLAGS = attrgetter("requires_grad")
_HOOKS = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")


class Guards:
    """What `reach` found; entries in `free` places are assigned by the call, and not compared."""

    def __init__(self, reach: Reach, free: set[Key]):
        held: set[int] = {key[0] for key in free}
        whole: dict[int, tuple[Any, str]] = {}
        for container, label in reach.whole:
            whole.setdefault(id(container), (container, label))
        singles = [(d, key, "") for d, key in reach.single if (id(d), key) not in free]
        for container, label in whole.values():
            if id(container) in held and isinstance(container, dict):
                singles.extend((container, key, label) for key in container if (id(container), key) not in free)
        self._empty = [c for c, _ in whole.values() if not c]
        self._filled = [(c, label) for c, label in whole.values() if c and id(c) not in held]
        # the view of a dict's values follows what happens to the dict
        self._views = [c.values() if isinstance(c, dict) else c for c, _ in self._filled]
        self._hooks = [d for d in GLOBAL_HOOKS if not d]
        self._lengths = list(map(len, self._views))
        self._entries = list(chain.from_iterable(self._views))
        self._dicts = [d for d, _, _ in singles]
        self._keys = [key for _, key, _ in singles]
        self._labels = [label for _, _, label in singles]
        self._values = list(map(dict.get, self._dicts, self._keys))
        self._cells = reach.cells
        self._contents = list(map(_CONTENTS, self._cells))
        self._classes = reach.classes
        self._numbers = [(label, tensor, tensor.item()) for label, tensor in reach.numbers_on_cpu]
        states = {id(d) for optimizer in reach.optimizers for d in optimizer.state.values()}
        leaves = {
            id(t): t for place, t in reach.tensors.items() if t.is_leaf and place[1] != GRAD and place[0] not in states
        }
        self._leaves = list(leaves.values())
        self._flags = list(map(_FLAGS, self._leaves))
        self._graded = [t for t in self._leaves if t.requires_grad]
        self._tensor_hooks = list(map(_HOOKS, self._graded))
        self._hook_counts = _counts(self._tensor_hooks)
        self._labels_of = reach.labels

    def broken(self) -> str | None:
        """What is not as it was, or None."""
        if any(self._empty) or any(self._hooks):
            return "a hook was added, or something put into what was empty"
        if list(map(len, self._views)) != self._lengths:
            return f"the length of {self._first_length()} changed"
        if not all(map(is_, chain.from_iterable(self._views), self._entries)):
            self._entries, at = _compared(chain.from_iterable(self._views), self._entries)
            if at is not None:
                return f"{self._entry(at)} changed"
        if not all(map(is_, map(dict.get, self._dicts, self._keys), self._values)):
            self._values, at = _compared(map(dict.get, self._dicts, self._keys), self._values)
            if at is not None:
                return f"{self._keys[at]!r} changed"
        if not all(map(is_, map(_CONTENTS, self._cells), self._contents)):
            self._contents, at = _compared(map(_CONTENTS, self._cells), self._contents)
            if at is not None:
                return "a variable of an enclosing function changed"
        if list(map(_FLAGS, self._leaves)) != self._flags:
            return "requires_grad of a tensor changed"
        hooks = list(map(_HOOKS, self._graded))
        if hooks != self._tensor_hooks or (self._hook_counts and _counts(hooks) != self._hook_counts):
            return "the hooks of a tensor changed"
        for kind, name, value in self._classes:
            if getattr(kind, name, None) is not value:
                return f"{kind.__name__}.{name} changed"
        for label, tensor, number in self._numbers:
            if not exactly(tensor.item(), number):
                return f"{label} changed"
        return None

    def _first_length(self) -> str:
        return next(label for (c, label), length in zip(self._filled, self._lengths) if len(c) != length)

    def _entry(self, at: int) -> str:
        for container, label in self._filled:
            if at < len(container):
                key = list(container)[at] if isinstance(container, dict) else at
                return self._labels_of.get((id(container), key), f"{label}[...]")
            at -= len(container)
        return "something"


def _counts(hooks: list[tuple[Any, ...]]) -> list[int]:
    """How many hooks each dict of them has; a dict that got another is still equal to itself."""
    return [len(each) for pair in hooks for each in pair if each is not None]


def _compared(now: Iterable[Any], before: list[Any]) -> tuple[list[Any], int | None]:
    """(the entries now, the first that differs): plain values of equal bits are the same."""
    found = list(now)
    for i, (a, b) in enumerate(zip(found, before, strict=True)):
        if a is not b and not (type(a) in SIMPLE and exactly(a, b)):
            return before, i
    return found, None
