"""Which program a trace has, for the processes that follow: they do without import, passes and emission.

An entry of the cache on disk, of kind "trace", is found by the digest of the trace's canonical text, of what is asked
of it, and of the environment. It holds, as JSON, what a cut needs to know of the program (`Entry`), and the key of the
executable, which is an entry of its own. Nothing in an entry is trusted: it is looked through field by field, against
the trace it is used for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lazytpu.aten.scalars import PACK_OF, PACKS
from lazytpu.engine.errors.cuts import CHECKED
from lazytpu.engine.trace_cache.digest import NotCanonical, canonical
from lazytpu.runtime.signature import Signature, TensorSpec
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import Record, State
from lazytpu.trace.value import Layout

VERSION = 4

_PACKED = {"f32": "float32", "f64": "float64", "i64": "int64", "ui64": "uint64"}


PackEntries = dict[str, tuple[tuple[int, str, str], ...]]


class Malformed(ValueError):
    """An entry is not what this trace could have; the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a cut needs of the program of one trace; see `compiled.Compiled`.

    `program` is the key of the executable. `entries` are the packer's. Of each check, `checks` has (index of the
    record, message, name of the exception).
    """

    program: str
    entries: PackEntries
    packs: tuple[int, ...]
    inputs: tuple[int, ...]
    donated: tuple[int, ...]
    live: tuple[int, ...]
    checks: tuple[tuple[int, str, str], ...]


def content(records: Sequence[Record], live: Sequence[int], dead: Sequence[int], settings: Sequence[str]) -> str | None:
    """The digest of a trace and of what is asked of it; None for a trace that has no canonical text. `settings` are
    those that change what is emitted."""
    try:
        text = canonical(records)
    except NotCanonical:
        return None
    made = hashlib.sha256()
    asked = f"live {tuple(live)} dead {tuple(dead)}"
    for part in (f"lazytpu trace {VERSION}", *settings, asked, text):
        made.update(f"{len(part)} {part}\n".encode())
    return made.hexdigest()


def as_json(entry: Entry) -> dict[str, Any]:
    """The fields of an entry."""
    return {
        "program": entry.program,
        "entries": {pack: [list(each) for each in found] for pack, found in entry.entries.items()},
        "packs": entry.packs,
        "inputs": entry.inputs,
        "donated": entry.donated,
        "live": entry.live,
        "checks": [list(check) for check in entry.checks],
    }


def encode(entry: Entry) -> bytes:
    """The entry as it is stored."""
    return json.dumps(as_json(entry), separators=(",", ":")).encode()


def decode(data: bytes, state: State, live: Sequence[int], dead: Sequence[int]) -> Entry:
    """The entry in `data`, for a trace that ends at `state`. Raises Malformed unless every field fits this trace."""
    try:
        fields = json.loads(data)
        entry = Entry(
            program=fields["program"],
            entries={pack: tuple((n, part, dtype) for n, part, dtype in v) for pack, v in fields["entries"].items()},
            packs=tuple(fields["packs"]),
            inputs=tuple(fields["inputs"]),
            donated=tuple(fields["donated"]),
            live=tuple(fields["live"]),
            checks=tuple((record, message, error) for record, message, error in fields["checks"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"it cannot be read: {error!r}") from error
    faults = _faults(entry, state, tuple(live), frozenset(dead))
    if faults:
        raise Malformed(", ".join(faults))
    if json.loads(encode(entry)) != fields:
        raise Malformed("it has fields that no entry has")
    return entry


def signature(entry: Entry, records: Sequence[Record]) -> Signature:
    """What the program of a checked entry takes and gives, as the trace says: its executable must agree."""
    slots = Slots(records)
    inputs = list(slots.inputs)  # in order of admission
    packs = [(np.dtype(_PACKED[pack]), (len(numbers),)) for pack, numbers in entry.entries.items()]
    status = np.dtype(bool), (max(1, len(entry.checks)),)
    return Signature(
        (*(packs[i] for i in entry.packs), *(spec(slots.layouts[inputs[i]]) for i in entry.inputs)),
        (*(spec(slots.layouts[slot]) for slot in entry.live), status),
        tuple(len(entry.packs) + entry.inputs.index(i) for i in entry.donated),
    )


def spec(layout: Layout) -> TensorSpec:
    return np.dtype(str(layout.dtype).removeprefix("torch.")), layout.memory_shape  # numpy has torch's names


def _faults(entry: Entry, state: State, live: tuple[int, ...], dead: frozenset[int]) -> list[str]:
    """What is wrong with an entry."""
    found: list[str] = []

    def expect(holds: bool, what: str) -> None:
        if not holds:
            found.append(f"its {what}")

    expect(isinstance(entry.program, str) and _is_digest(entry.program), "program is no key")
    expect(_increasing(entry.packs, len(entry.entries)), "packs are not those of its numbers")
    expect(_increasing(entry.inputs, state.inputs), f"inputs are not among the {state.inputs} of this trace")
    if not all(type(number) is int for number in (*entry.inputs, *entry.donated)):
        return ["its inputs are not numbers"]
    taken = dead.intersection(entry.inputs)
    expect(_increasing(entry.donated, state.inputs) and taken.issuperset(entry.donated), "donated inputs are in use")
    expect(entry.live == live, "results are not those asked for")
    expect(list(entry.entries) == [pack for pack in PACKS if pack in entry.entries], "packs are unknown")
    for pack, numbers in entry.entries.items():
        fits = all(_is_number(n, part, dtype, pack, state.numbers) for n, part, dtype in numbers)
        expect(bool(numbers) and fits, f"numbers of pack {pack} are not those of this trace")
    for record, message, error in entry.checks:
        fits = type(record) is int and 0 <= record < state.depth
        expect(fits and isinstance(message, str) and error in CHECKED, "checks are not of this trace's records")
    return found


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _increasing(values: tuple[Any, ...], limit: int) -> bool:
    """Whether these are ints in increasing order, from 0 to below `limit`."""
    whole = all(type(v) is int for v in values)
    return whole and all(a < b for a, b in zip((-1, *values), (*values, limit), strict=True))


def _is_number(number: Any, part: Any, dtype: Any, pack: str, numbers: int) -> bool:
    indexed = type(number) is int and 0 <= number < numbers
    return indexed and part in ("real", "imag") and isinstance(dtype, str) and PACK_OF.get(dtype) == pack
