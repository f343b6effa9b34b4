"""Static numbers that vary: the second value seen in one place makes a record that takes the number at run time (R3).

A record whose arguments include a promotable number (see `lazytpu.aten.registry.Rule`) begins as part of the program.
When the same state of the trie sees it again with another value, the edge of the first value gives way to one that is
keyed by the number's type, and every value from then on takes that one: two programs at most, instead of one for each
value. Numbers that vary together are promoted together, and a source line where a number was seen to vary begins with
the run-time edge in traces of other shapes. All of it happens on misses: hits of other ops pay nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from lazytpu.trace.recorder import Recorder
from lazytpu.trace.trie import Number, State

Key = tuple[Any, ...]


class Varies:
    """Stands in a key where the number of a run-time edge would be."""

    def __repr__(self) -> str:
        return "VARIES"


VARIES = Varies()
_KINDS = (int, float, complex)

# Ops whose numbers decide how many elements there are, which stays in the key.
_SEQUENCES = frozenset({"aten.arange.start", "aten.arange.start_step"})
# What an op refuses besides some negative numbers: a delta of 0, the infinite norm of an empty tensor.
_REFUSED: dict[str, Callable[[Any], bool]] = {
    "aten.huber_loss.default": lambda delta: delta == 0,
    "aten.huber_loss_backward.default": lambda delta: delta == 0,
    "aten.linalg_vector_norm.default": math.isinf,
    "aten._foreach_norm.Scalar": math.isinf,
}


@dataclass(frozen=True, slots=True)
class Widened:
    """A record's key with the types of its promotable numbers in place of their values, and these values in order."""

    key: Key
    numbers: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Promotable:
    """The promotable arguments of an op: their names, and where they are in the keys of its records."""

    op: str
    names: tuple[str, ...]
    places: tuple[int, ...]

    @staticmethod
    def of(op: str, names: Iterable[str], promotable: frozenset[str]) -> Promotable | None:
        """Those of an op whose keys have the arguments `names` in this order; None when there are none."""
        found = [(name, i + 1) for i, name in enumerate(names) if name in promotable]  # the op's name comes first
        return Promotable(op, tuple(n for n, _ in found), tuple(i for _, i in found)) if found else None

    def widen(self, key: Key) -> Widened | None:
        """The run-time form of a key; None when no promotable argument is a number."""
        tokens, numbers = list(key), list[Any]()
        for place in self.places:
            token = key[place]
            if _is_number(token):
                tokens[place] = self._wide(token, numbers)
            elif type(token) is tuple and token and all(map(_is_number, token)):
                tokens[place] = tuple([self._wide(each, numbers) for each in token])
        if not numbers:
            return None
        if self.op in _SEQUENCES:
            if any(type(n) is not int for n in numbers):
                return None  # how many elements there are depends on rounding
            tokens.append(_length(*numbers))
        return Widened(tuple(tokens), tuple(numbers))

    def _wide(self, token: Key, numbers: list[Any]) -> Key:
        """The token of a run-time number: its type, and whether it is one of those that torch may refuse, such as a
        negative power of integers: these are checked when their edge is made."""
        kind, value = token
        number = kind(value) if type(value) is str else value  # zeros and NaN are text, see `kernels.exact`
        numbers.append(number)
        if kind is complex:
            return (VARIES, kind)
        refused = _REFUSED.get(self.op)
        return (VARIES, kind, number < 0, refused is not None and refused(number))

    def arguments(self, given: dict[str, Any], start: int) -> dict[str, Any]:
        """A record's arguments with run-time numbers, counted from `start`, in place of the promotable ones."""
        made = dict(given)
        for name in self.names:
            value = made.get(name)
            if type(value) in _KINDS:
                made[name] = Number(start, type(value))
                start += 1
            elif isinstance(value, tuple) and value and all(type(v) in _KINDS for v in value):
                made[name] = [Number(start + i, type(v)) for i, v in enumerate(value)]
                start += len(value)
        return made

    def static(self, state: State, key: Key, wide: Widened) -> State | None:
        """The child of a state whose key differs from `key` in the values of promotable numbers alone."""
        for other, child in list(state.next.items()):
            if other[0] == self.op and len(other) == len(key) and other != key:
                found = self.widen(other)
                if found is not None and found.key == wide.key:
                    return child
        return None


def _is_number(token: Any) -> bool:
    return type(token) is tuple and len(token) == 2 and token[0] in _KINDS


def _length(start: int, end: int, step: int = 1) -> int:
    return -((start - end) // step) if step else -1


@dataclass(slots=True)
class Twins:
    """A state below a run-time edge that was just made, and its like in the trace with the earlier number."""

    new: State
    old: State


_twins: WeakKeyDictionary[Recorder, Twins] = WeakKeyDictionary()
_varied: set[Any] = set()  # ops and source lines where a number was seen to vary: no more than the program has


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether a new record takes its numbers at run time (`wide`), the edge that this replaces, and its like in the
    trace that this one departs from by a number."""

    wide: Widened | None = None
    replaced: State | None = None
    twin: State | None = None


_STATIC = Choice()


def choose(
    recorder: Recorder, state: State, key: Key, promotable: Promotable | None, wide: Widened | None, line: Any
) -> Choice:
    """The choice for a record that `state` has not seen, at the user's `line`; `wide` is its key's run-time form."""
    twins = _twins.get(recorder) if _twins else None
    beside = twins.old if twins is not None and twins.new is state else None
    twin = None if beside is None else beside.next.get(key)
    if promotable is None or wide is None:
        return _STATIC if twin is None else Choice(twin=twin)
    replaced = promotable.static(state, key, wide)
    if twin is None and beside is not None:
        twin = beside.next.get(wide.key) or promotable.static(beside, key, wide)
    if replaced is None and twin is not None and twin.key == key:
        return Choice(twin=twin)  # the same number as in the trace beside this one
    if replaced is None and twin is None and (promotable.op, line) not in _varied:
        return _STATIC
    if line is not None and not recorder.eager:  # traces of one op have the same state for every line
        _varied.add((promotable.op, line))
    return Choice(wide, replaced, replaced or twin)


def settle(recorder: Recorder, parent: State, child: State, choice: Choice) -> None:
    """Called when `child` was added to `parent` by a choice: the edge that it replaces goes, so that the first value
    takes the run-time edge, too."""
    old = choice.replaced
    if old is not None and old.key is not None and parent.next.get(old.key) is old:
        parent.remove(old)
    if choice.twin is not None:
        _twins[recorder] = Twins(child, choice.twin)
    elif _twins:
        _twins.pop(recorder, None)
