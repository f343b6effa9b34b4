"""Two traces side by side: the first record that differs, and in which of its arguments."""

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

SHOWN = 4  # records of each side that a diff shows after those in common
COMMON = 2  # records in common that it shows before


@dataclass(frozen=True, slots=True)
class ArgumentChange:
    """One argument that differs between two records of the same op: what it was, what it is, and its reason code."""

    code: str
    position: int
    "Counted from 1, as in the schema."
    name: str
    was: Any
    now: Any
    element: int | None = None
    "Which tensor of a list, from 1."

    def dims(self) -> list[int]:
        """The dimensions whose sizes differ, when the rank is the same."""
        was, now = self.sizes()
        return [i for i, (a, b) in enumerate(zip(was, now, strict=True)) if a != b] if len(was) == len(now) else []

    def pairs(self) -> set[tuple[int, int]]:
        """The sizes that differ, as (was, is)."""
        was, now = self.sizes()
        return {(was[d], now[d]) for d in self.dims()}

    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The sizes that a tensor or a list of sizes had, and has."""
        return _sizes(self.was), _sizes(self.now)


def _sizes(value: Any) -> tuple[int, ...]:
    if isinstance(value, TensorArgument):
        return value.shape
    numbers = [v.value for v in value if isinstance(v, Static)] if isinstance(value, tuple) else []
    return tuple(numbers) if all(type(n) is int for n in numbers) else ()


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two traces part: at `index`, the first record that differs. The last `same_after` records of both have the
    same ops and lines again; `changes` are the arguments that differ when the op is the same."""

    index: int
    same_after: int
    changes: tuple[ArgumentChange, ...]


def compare(old: Sequence[Record], new: Sequence[Record], same_after: int) -> Difference | None:
    """Where the traces part; None when they are the same. `same_after`: ops and lines that both end with, all of them
    when only arguments differ."""
    count = min(len(old), len(new))
    for i, (before, after) in enumerate(zip(old, new, strict=False)):
        if before is after or _alike(before, after):
            continue
        changes = _changes(before, after, wording.layouts(old[: i + 1]), wording.layouts(new[: i + 1]))
        if changes is not None and not changes:
            continue  # the same but for what cannot be compared at once, such as a NaN
        rest = same_after if same_after < count else count - i - 1
        return Difference(i, min(rest, count - i), changes or ())
    return None if len(old) == len(new) else Difference(count, 0, ())


def _alike(old: Record, new: Record) -> bool:
    return (
        old.op is new.op
        and old.line == new.line
        and [(s, o.key, e) for s, o, e in old.admitted] == [(s, o.key, e) for s, o, e in new.admitted]
        and old.out_slots == new.out_slots
        and old.settings == new.settings
        and _exactly(old.arguments) == _exactly(new.arguments)
    )


def _exactly(arguments: Mapping[str, Any]) -> list[Any]:
    """Arguments to compare: of floats the text counts, since -0.0 == 0.0."""
    return [repr(v) if isinstance(v, float | complex | bool | int | tuple) else v for v in arguments.values()]


def _changes(
    old: Record, new: Record, before: Mapping[int, Layout], after: Mapping[int, Layout]
) -> tuple[ArgumentChange, ...] | None:
    """The arguments that differ; None when the records are not of the same op, or only their lines differ. A line alone
    says little: traces that begin with the same records share them, with the lines that had them first."""
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


# Which change of a record is told first: what a shape or a dtype entails follows from it.
_ORDER = ("dtype", "shape", "static-scalar", *SWITCHES.values(), "layout", "new-trace-path")
_WEIGHT = {code: i for i, code in enumerate(_ORDER)}


def _tensors(values: tuple[Any, ...]) -> bool:
    return all(v is None or isinstance(v, TensorArgument | Number) for v in values)


def _code(was: Any, now: Any) -> str:
    if isinstance(was, TensorArgument) and isinstance(now, TensorArgument):
        if was.dtype is not now.dtype:
            return "dtype"
        if was.shape != now.shape:
            return "shape"
        if (was.stride, was.offset, was.base) != (now.stride, now.offset, now.base):
            return "layout"
        return "new-trace-path"  # the same kind of tensor, another one
    if isinstance(was, Number) and isinstance(now, Number):
        return "dtype"
    if isinstance(was, TensorArgument) or isinstance(now, TensorArgument):
        return "new-trace-path"
    if isinstance(was, Number) or isinstance(now, Number):
        return "static-scalar"  # was part of the program, is one of its arguments
    if isinstance(was, Static) and isinstance(now, Static) and was.kind in (int, float, complex):
        return "static-scalar" if was.kind is now.kind else "dtype"
    if isinstance(was, tuple) and isinstance(now, tuple):
        return "shape"
    return "static-scalar"


def diff(old: Sequence[Record], new: Sequence[Record], difference: Difference) -> tuple[str, ...]:
    """The records around a difference, as lines: two spaces before those in common, "- " before the nearest program's,
    "+ " before this one's."""
    i = difference.index
    before = wording.layouts(old[: i + SHOWN + 1])
    after = wording.layouts(new[: i + SHOWN + 1])
    lines = [f"  {wording.line_of(record, after)}" for record in new[max(i - COMMON, 0) : i]]
    if i > COMMON:
        lines.insert(0, f"  … {i - COMMON:,} more in common")
    one = bool(difference.changes)
    for sign, records, known in (("-", old, before), ("+", new, after)):
        end = i + 1 if one else len(records) - difference.same_after
        shown = records[i : min(end, i + SHOWN)]
        lines.extend(f"{sign} {wording.line_of(record, known)}" for record in shown)
        if end - i > SHOWN:
            lines.append(f"{sign} … {end - i - SHOWN:,} more")
    rest = min(len(new) - i - 1, difference.same_after) if one else difference.same_after
    if rest > 0:
        lines.append(f"  … {rest:,} more with the same ops and lines")
    return tuple(lines)
