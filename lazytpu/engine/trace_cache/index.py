"""The index of traces: later processes find a trace's program without import, passes and emission.

An entry of the disk cache, of kind "trace", is keyed by the digest of three things: the trace's canonical text, the
requested results, and the environment. It contains, as JSON, the `Binding` of the program and the key of the
executable, which is an entry of its own. For a program for many sizes it also has the expressions and guards. No entry
is trusted: each field is checked against the trace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lazytpu.aten.errors import Check
from lazytpu.aten.scalars import PACK_OF, PACKS, Packer
from lazytpu.engine.errors.cuts import CHECKED
from lazytpu.engine.programs.binding import Binding, Padding
from lazytpu.engine.programs.expressions import Expressions
from lazytpu.engine.trace_cache.digest import NotCanonical, canonical
from lazytpu.ir.forms import parse
from lazytpu.trace.trie import Record, State

VERSION = 7  # of the index on disk: raised when its text changes meaning


class Malformed(ValueError):
    """Raised for an entry that cannot belong to the trace; the message has the reason."""


def content(records: Sequence[Record], live: Sequence[int], dead: Sequence[int], settings: Sequence[str]) -> str | None:
    """Return the digest of a trace and its requested results, or None if the trace has no canonical text. `settings`
    are the settings that affect translation."""
    try:
        text = canonical(records)
    except NotCanonical:
        return None
    digest = hashlib.sha256()
    asked = f"live {tuple(live)} dead {tuple(dead)}"
    for field in (f"lazytpu trace {VERSION}", *settings, asked, text):
        digest.update(f"{len(field)} {field}\n".encode())
    return digest.hexdigest()


def as_json(program: str, binding: Binding) -> dict[str, Any]:
    """Return the fields of an entry. `program` is the key of the executable."""
    return {
        "program": program,
        "entries": {pack: [list(entry) for entry in entries] for pack, entries in binding.packer.entries.items()},
        "packs": list(binding.packs),
        "inputs": list(binding.inputs),
        "donated": sorted(binding.donated),
        "live": list(binding.live),
        "checks": [[check.record, check.message, check.error] for check in binding.checks],
        "padding": None if binding.padding is None else _padding(binding.padding),
    }


def _padding(padding: Padding) -> list[Any]:
    """Return the fields of an entry's padding."""
    return [*map(_lists, (padding.symbols, padding.arguments, padding.results)), padding.expressions.encode()]


def _as_padding(fields: Sequence[Any]) -> Padding:
    """Return the padding from the fields that `_padding` wrote. Raise Malformed."""
    symbols, arguments, results = map(_tuples, fields[:3])
    expressions = Expressions.decode(fields[3])
    texts = (*expressions.forms, *(text for text, _, _ in expressions.guards))
    if any(not parse(text).symbols <= set(symbols) for text in texts):
        raise Malformed("its expressions have other symbols")
    return Padding(symbols, arguments, results, expressions)


def _lists(value: Any) -> Any:
    """Return nested tuples as lists, as JSON has them."""
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    """Return nested lists as tuples."""
    return tuple([_tuples(item) for item in value]) if isinstance(value, list) else value


def encode(program: str, binding: Binding) -> bytes:
    """Return the bytes of an entry."""
    return json.dumps(as_json(program, binding), separators=(",", ":")).encode()


def decode(data: bytes, state: State, live: Sequence[int], dead: Sequence[int]) -> tuple[str, Binding]:
    """Return the key of the executable and the binding in `data`, for a trace that ends at `state`, with the source
    lines of its records. Raise Malformed unless every field is valid for this trace."""
    try:
        fields = json.loads(data)
        faults = _faults(fields, state, list(live), frozenset(dead))
        if faults:
            raise Malformed(", ".join(faults))
        records = state.records()
        binding = Binding(
            packer=Packer({pack: tuple((n, part, t) for n, part, t in v) for pack, v in fields["entries"].items()}),
            packs=tuple(fields["packs"]),
            inputs=tuple(fields["inputs"]),
            donated=frozenset(fields["donated"]),
            live=tuple(live),
            checks=tuple(
                Check(message, error, str(records[i].op), records[i].line, i) for i, message, error in fields["checks"]
            ),
            padding=None if fields["padding"] is None else _as_padding(fields["padding"]),
        )
    except Malformed:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Malformed(f"it cannot be read: {error!r}") from error
    if as_json(fields["program"], binding) != fields:
        raise Malformed("it has fields that no entry has")
    return fields["program"], binding


def _faults(fields: Mapping[str, Any], state: State, live: list[int], dead: frozenset[int]) -> list[str]:
    """Return the faults in the fields of an entry. Raise any error that values of wrong types cause."""
    faults: list[str] = []

    def expect(holds: bool, what: str) -> None:
        if not holds:
            faults.append(f"its {what}")

    inputs, donated, entries = fields["inputs"], fields["donated"], fields["entries"]
    expect(isinstance(fields["program"], str) and _is_digest(fields["program"]), "program is no key")
    expect(_increasing(fields["packs"], len(entries)), "packs are not those of its numbers")
    expect(_increasing(inputs, state.inputs), f"inputs are not among the {state.inputs} of this trace")
    expect(
        _increasing(donated, state.inputs) and dead.intersection(inputs).issuperset(donated),
        "donated inputs are in use",
    )
    expect(fields["live"] == live, "results are not those asked for")
    expect(list(entries) == [pack for pack in PACKS if pack in entries], "packs are unknown")
    for pack, numbers in entries.items():
        fits = all(_is_number(n, part, dtype, pack, state.numbers) for n, part, dtype in numbers)
        expect(bool(numbers) and fits, f"numbers of pack {pack} are not those of this trace")
    for record, message, error in fields["checks"]:
        fits = type(record) is int and 0 <= record < state.depth
        expect(fits and isinstance(message, str) and error in CHECKED, "checks are not of this trace's records")
    return faults


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _increasing(values: Sequence[Any], limit: int) -> bool:
    """Return whether these are ints in increasing order, from 0 to below `limit`."""
    integral = all(type(v) is int for v in values)
    return integral and all(a < b for a, b in zip((-1, *values), (*values, limit), strict=True))


def _is_number(number: Any, part: Any, dtype: Any, pack: str, numbers: int) -> bool:
    indexed = type(number) is int and 0 <= number < numbers
    return indexed and part in ("real", "imag") and isinstance(dtype, str) and PACK_OF.get(dtype) == pack
