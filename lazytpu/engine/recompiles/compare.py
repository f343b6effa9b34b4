"""Comparison of two traces: the first record that differs, and the arguments in which it differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lazytpu.engine.recompiles import wording
from lazytpu.engine.recompiles.wording import Static, TensorArgument
from lazytpu.trace.settings import DEFAULT_DTYPE, DETERMINISM, PRECISION
from lazytpu.trace.trie import Number, Record
from lazytpu.trace.value import Layout

SWITCHES = {DEFAULT_DTYPE: "default-dtype", PRECISION: "precision", DETERMINISM: "determinism"}
"The reason code of each switch in a record's settings."

SHOWN = 4  # differing records of each trace that a diff shows
COMMON = 2  # common records that a diff shows before them


@dataclass(frozen=True, slots=True)
class ArgumentChange:
    """An argument that differs between two records of the same op: its old and new value, and the reason code."""

    code: str
    position: int
    "Counted from 1, as in the schema."
    name: str
    was: Any
    now: Any
    element: int | None = None
    """The tensor of a list, counted from 1."""

    def dims(self) -> list[int]:
        """Return the dimensions whose sizes differ, if the rank is the same."""
        was, now = self.sizes()
        return [i for i, (a, b) in enumerate(zip(was, now, strict=True)) if a != b] if len(was) == len(now) else []

    def pairs(self) -> set[tuple[int, int]]:
        """Return the sizes that differ, as (old, new)."""
        was, now = self.sizes()
        return {(was[d], now[d]) for d in self.dims()}

    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the old and new sizes of a tensor or a list of sizes."""
        return _sizes(self.was), _sizes(self.now)


def _sizes(value: Any) -> tuple[int, ...]:
    if isinstance(value, TensorArgument):
        return value.shape
    numbers = [v.value for v in value if isinstance(v, Static)] if isinstance(value, tuple) else []
    return tuple(numbers) if all(type(n) is int for n in numbers) else ()


@dataclass(frozen=True, slots=True)
class Difference:
    """The place where two traces diverge: `index` is the first record that differs.

    The last `same_after` records of both have the same ops and lines. `changes` are the arguments that differ if the op
    is the same.
    """

    index: int
    same_after: int
    changes: tuple[ArgumentChange, ...]


def compare(old: Sequence[Record], new: Sequence[Record], same_after: int) -> Difference | None:
    """Return where the traces diverge, or None if they are the same.

    `same_after` is the number of ops and lines with which both end, all of them if only arguments differ.
    """
    count = min(len(old), len(new))
    for i, (before, after) in enumerate(zip(old, new, strict=False)):
        if before is after or _alike(before, after):
            continue
        changes = _changes(before, after, wording.layouts(old[: i + 1]), wording.layouts(new[: i + 1]))
        if changes is not None and not changes:
            continue  # equal after all: the fast comparison fails for a NaN, for instance
        common_after = same_after if same_after < count else count - i - 1
        return Difference(i, min(common_after, count - i), changes or ())
    return None if len(old) == len(new) else Difference(count, 0, ())


def _alike(old: Record, new: Record) -> bool:
    """Return whether two records are equal by a fast comparison."""
    return (
        old.op is new.op
        and old.line == new.line
        and [(s, o.key, e) for s, o, e in old.admitted] == [(s, o.key, e) for s, o, e in new.admitted]
        and old.out_slots == new.out_slots
        and old.settings == new.settings
        and _exactly(old.arguments) == _exactly(new.arguments)
    )


def _exactly(arguments: Mapping[str, Any]) -> list[Any]:
    """Return arguments for comparison. Floats are compared as text, since -0.0 == 0.0."""
    return [repr(v) if isinstance(v, float | complex | bool | int | tuple) else v for v in arguments.values()]


def _changes(
    old: Record, new: Record, before: Mapping[int, Layout], after: Mapping[int, Layout]
) -> tuple[ArgumentChange, ...] | None:
    """Return the arguments that differ, or None if the ops differ, or only the lines.

    A differing line alone means little: traces with the same first records share them, with the lines of the first
    trace.
    """
    if old.op is not new.op:
        return None
    changes: list[ArgumentChange] = []
    for i, argument in enumerate(old.op._schema.arguments):
        name = argument.name
        was = wording.described(old.arguments.get(name, argument.default_value), before)
        now = wording.described(new.arguments.get(name, argument.default_value), after)
        pairs = [(None, was, now)]
        if isinstance(was, tuple) and isinstance(now, tuple) and len(was) == len(now) and _tensors(was + now):
            pairs = [(j + 1, a, b) for j, (a, b) in enumerate(zip(was, now, strict=True))]
        for element, a, b in pairs:
            if a != b:
                changes.append(ArgumentChange(_code(a, b), i + 1, name, a, b, element))
    # Compare global settings, and whether inputs are unwritten memory.
    was, now = dict(old.settings), dict(new.settings)
    changes.extend(
        ArgumentChange(code, 0, name, was[name], now[name])
        for name, code in SWITCHES.items()
        if name in was and name in now and was[name] != now[name]
    )
    empty = {slot: is_empty for slot, _, is_empty in old.admitted}
    for slot, layout, is_empty in new.admitted:
        if empty.get(slot, is_empty) != is_empty:
            words = {True: "memory that nothing had written", False: "a tensor with values"}
            what = wording.array(layout.dtype, layout.shape)
            changes.append(ArgumentChange("new-trace-path", 0, what, words[not is_empty], words[is_empty]))
    if not changes and old.line != new.line:
        return None
    return tuple(sorted(changes, key=lambda change: _WEIGHT[change.code]))


# The change of a record to report first: other changes may follow from a change of shape or dtype.
_ORDER = ("dtype", "shape", "static-scalar", *SWITCHES.values(), "layout", "new-trace-path")
_WEIGHT = {code: i for i, code in enumerate(_ORDER)}


def _tensors(values: tuple[Any, ...]) -> bool:
    return all(v is None or isinstance(v, TensorArgument | Number) for v in values)


def _code(was: Any, now: Any) -> str:
    """Return the reason code of a changed argument."""
    if isinstance(was, TensorArgument) and isinstance(now, TensorArgument):
        if was.dtype is not now.dtype:
            return "dtype"
        if was.shape != now.shape:
            return "shape"
        if (was.stride, was.offset, was.base) != (now.stride, now.offset, now.base):
            return "layout"
        return "new-trace-path"  # a different tensor of the same kind
    if isinstance(was, Number) and isinstance(now, Number):
        return "dtype"
    if isinstance(was, TensorArgument) or isinstance(now, TensorArgument):
        return "new-trace-path"
    if isinstance(was, Number) or isinstance(now, Number):
        return "static-scalar"  # was compiled in, is an argument now
    if isinstance(was, Static) and isinstance(now, Static) and was.kind in (int, float, complex):
        return "static-scalar" if was.kind is now.kind else "dtype"
    if isinstance(was, tuple) and isinstance(now, tuple):
        return "shape"
    return "static-scalar"


def diff(old: Sequence[Record], new: Sequence[Record], difference: Difference) -> tuple[str, ...]:
    """Return the lines of a diff around a difference: two spaces precede common records, "- " the nearest program's,
    and "+ " this one's."""
    i = difference.index
    before = wording.layouts(old[: i + SHOWN + 1])
    after = wording.layouts(new[: i + SHOWN + 1])
    lines = [f"  {wording.line_of(record, after)}" for record in new[max(i - COMMON, 0) : i]]
    if i > COMMON:
        lines.insert(0, f"  … {i - COMMON:,} more in common")
    same_op = bool(difference.changes)
    for sign, records, slot_layouts in (("-", old, before), ("+", new, after)):
        end = i + 1 if same_op else len(records) - difference.same_after
        shown = records[i : min(end, i + SHOWN)]
        lines.extend(f"{sign} {wording.line_of(record, slot_layouts)}" for record in shown)
        if end - i > SHOWN:
            lines.append(f"{sign} … {end - i - SHOWN:,} more")
    common_after = min(len(new) - i - 1, difference.same_after) if same_op else difference.same_after
    if common_after > 0:
        lines.append(f"  … {common_after:,} more with the same ops and lines")
    return tuple(lines)
