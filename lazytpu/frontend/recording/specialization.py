"""Scalar specialization: a program is specialized to an op's numbers until one of them is seen to vary (R3).

Some numbers (see `specialized` in `lazytpu.aten.registry.Facts`) start as static, part of the program. When the same
trie state sees the op with another value, the edge of the first value is replaced by a general one. The general edge is
keyed by the number's type, and takes the number at run time. Every later value takes that edge: at most two programs,
instead of one per value.

Numbers that vary together become run-time numbers together. A source line where a number was seen to vary starts with
the general edge in traces of other shapes. All of this happens on misses; hits of other ops pay nothing.
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
    """A placeholder for the number in the key of a general edge."""

    def __repr__(self) -> str:
        return "VARIES"


VARIES = Varies()
_KINDS = (int, float, complex)

# Ops whose numbers determine the number of elements, which stays in the key.
_SEQUENCES = frozenset({"aten.arange.start", "aten.arange.start_step"})
# Numbers that an op rejects besides negative ones: a delta of 0, the infinite norm of an empty tensor.
_REFUSED: dict[str, Callable[[Any], bool]] = {
    "aten.huber_loss.default": lambda delta: delta == 0,
    "aten.huber_loss_backward.default": lambda delta: delta == 0,
    "aten.linalg_vector_norm.default": math.isinf,
    "aten._foreach_norm.Scalar": math.isinf,
}


@dataclass(frozen=True, slots=True)
class GeneralKey:
    """A record's key with the types of its specialized numbers in place of their values, and these values in order."""

    key: Key
    numbers: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SpecializedScalars:
    """The arguments of an op to whose numbers its program is specialized: their names, and their indices in its
    keys."""

    op: str
    names: tuple[str, ...]
    places: tuple[int, ...]

    @staticmethod
    def of(op: str, names: Iterable[str], specialized: frozenset[str]) -> SpecializedScalars | None:
        """Return the specialized arguments of an op whose keys have the arguments `names` in this order; None without
        any."""
        pairs = [(name, i + 1) for i, name in enumerate(names) if name in specialized]  # index 0 is the op's name
        return SpecializedScalars(op, tuple(n for n, _ in pairs), tuple(i for _, i in pairs)) if pairs else None

    def generalize(self, key: Key) -> GeneralKey | None:
        """Return the general form of a key; None when no specialized argument is a number."""
        tokens, numbers = list(key), list[Any]()
        for place in self.places:
            token = key[place]
            if _is_number(token):
                tokens[place] = self._general_token(token, numbers)
            elif type(token) is tuple and token and all(map(_is_number, token)):
                tokens[place] = tuple([self._general_token(number, numbers) for number in token])
        if not numbers:
            return None
        if self.op in _SEQUENCES:
            if any(type(n) is not int for n in numbers):
                return None  # the number of elements depends on rounding
            tokens.append(_length(*numbers))
        return GeneralKey(tuple(tokens), tuple(numbers))

    def _general_token(self, token: Key, numbers: list[Any]) -> Key:
        """Return the token of a run-time number: its type, and whether torch may reject it, such as a negative power of
        integers.

        Such numbers have an edge of their own, and are checked when it is created.
        """
        kind, value = token
        number = kind(value) if type(value) is str else value  # zeros and NaN are text, see `keys.exact`
        numbers.append(number)
        if kind is complex:
            return (VARIES, kind)
        refused = _REFUSED.get(self.op)
        return (VARIES, kind, number < 0, refused is not None and refused(number))

    def arguments(self, static: dict[str, Any], start: int) -> dict[str, Any]:
        """Return a record's arguments with run-time numbers, counted from `start`, in place of the specialized ones."""
        arguments = dict(static)
        for name in self.names:
            value = arguments.get(name)
            if type(value) in _KINDS:
                arguments[name] = Number(start, type(value))
                start += 1
            elif isinstance(value, tuple) and value and all(type(v) in _KINDS for v in value):
                arguments[name] = [Number(start + i, type(v)) for i, v in enumerate(value)]
                start += len(value)
        return arguments

    def other_value(self, state: State, key: Key, general: GeneralKey) -> State | None:
        """Return the child of a state whose key differs from `key` only in the values of specialized numbers."""
        for sibling_key, child in list(state.next.items()):
            if sibling_key[0] == self.op and len(sibling_key) == len(key) and sibling_key != key:
                general_other = self.generalize(sibling_key)
                if general_other is not None and general_other.key == general.key:
                    return child
        return None


def _is_number(token: Any) -> bool:
    return type(token) is tuple and len(token) == 2 and token[0] in _KINDS


def _length(start: int, end: int, step: int = 1) -> int:
    return -((start - end) // step) if step else -1


@dataclass(slots=True)
class Twins:
    """A state below a general edge that was just created, and its counterpart in the trace with the earlier number."""

    new: State
    old: State


_twins: WeakKeyDictionary[Recorder, Twins] = WeakKeyDictionary()
_varied: set[Any] = set()  # ops and source lines with a varying number: bounded by the program's source


@dataclass(frozen=True, slots=True)
class Choice:
    """How a new record takes its numbers: at run time (`general`), or as static ones.

    `replaced` is the specialized state that this one replaces. `twin` is its counterpart in the trace that differs only
    by a number.
    """

    general: GeneralKey | None = None
    replaced: State | None = None
    twin: State | None = None


_STATIC = Choice()


def choose(
    recorder: Recorder,
    state: State,
    key: Key,
    scalars: SpecializedScalars | None,
    general: GeneralKey | None,
    line: Any,
) -> Choice:
    """Choose for a record that `state` has not seen, at the user's `line`. `general` is its key's general form."""
    twins = _twins.get(recorder) if _twins else None
    beside = twins.old if twins is not None and twins.new is state else None
    twin = None if beside is None else beside.next.get(key)
    if scalars is None or general is None:
        return _STATIC if twin is None else Choice(twin=twin)
    replaced = scalars.other_value(state, key, general)
    if twin is None and beside is not None:
        twin = beside.next.get(general.key) or scalars.other_value(beside, key, general)
    if replaced is None and twin is not None and twin.key == key:
        return Choice(twin=twin)  # the same number as in the twin's trace
    if replaced is None and twin is None and (scalars.op, line) not in _varied:
        return _STATIC
    if line is not None and not recorder.eager:  # an eager trace, of one op, has the same state for every line
        _varied.add((scalars.op, line))
    return Choice(general, replaced, replaced or twin)


def settle(recorder: Recorder, parent: State, child: State, choice: Choice) -> None:
    """Finish a choice after `child` was added to `parent`: remove the edge that it replaces, so that the first value
    takes the general edge, too."""
    old = choice.replaced
    if old is not None:
        parent.remove(old)
    if choice.twin is not None:
        _twins[recorder] = Twins(child, choice.twin)
    elif _twins:
        _twins.pop(recorder, None)
