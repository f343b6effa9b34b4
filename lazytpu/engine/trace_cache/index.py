"""Which program a trace has, for later processes: they need no import, passes and emission.

An entry of the cache on disk, of kind "trace", is found by the digest of the trace's canonical text, of what is asked
of it, and of the environment. It holds, as JSON, the `Binding` of the program, and the key of the executable, which is
an entry of its own. Of a program for many sizes it holds the expressions and guards, too. Nothing in an entry is
trusted: each field is checked against the trace that it is used for.
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

VERSION = 7


class Malformed(ValueError):
    """An entry is not what this trace could have; the message says why."""


def content(records: Sequence[Record], live: Sequence[int], dead: Sequence[int], settings: Sequence[str]) -> str | None:
    """The digest of a trace and of what is asked of it; None for a trace that has no canonical text. `settings` are
    those that change what is emitted."""
    try:
        text = canonical(records)
    except NotCanonical:
        return None
    digest = hashlib.sha256()
    asked = f"live {tuple(live)} dead {tuple(dead)}"
    for part in (f"lazytpu trace {VERSION}", *settings, asked, text):
        digest.update(f"{len(part)} {part}\n".encode())
    return digest.hexdigest()


def as_json(program: str, binding: Binding) -> dict[str, Any]:
    """The fields of an entry. `program` is the key of the executable."""
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
    """The fields of the padding of an entry."""
    return [*map(_lists, (padding.symbols, padding.arguments, padding.results)), padding.expressions.encode()]


def _as_padding(fields: Sequence[Any]) -> Padding:
    """The padding that `_padding` wrote. Raises Malformed."""
    symbols, arguments, results = map(_tuples, fields[:3])
    expressions = Expressions.decode(fields[3])
    texts = (*expressions.forms, *(text for text, _, _ in expressions.guards))
    if any(not parse(text).symbols <= set(symbols) for text in texts):
        raise Malformed("its expressions have other symbols")
    return Padding(symbols, arguments, results, expressions)


def _lists(value: Any) -> Any:
    """Tuples as lists, which is what JSON makes of them."""
    return [_lists(each) for each in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple([_tuples(each) for each in value]) if isinstance(value, list) else value


def encode(program: str, binding: Binding) -> bytes:
    """The entry as it is stored."""
    return json.dumps(as_json(program, binding), separators=(",", ":")).encode()


def decode(data: bytes, state: State, live: Sequence[int], dead: Sequence[int]) -> tuple[str, Binding]:
    """The key of the executable and the binding in `data`, for a trace that ends at `state`; source lines are those of
    its records. Raises Malformed unless every field fits this trace."""
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
    """What is wrong with the fields of an entry. Raises what looking at something of another type raises."""
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
    """Whether these are ints in increasing order, from 0 to below `limit`."""
    whole = all(type(v) is int for v in values)
    return whole and all(a < b for a, b in zip((-1, *values), (*values, limit), strict=True))


def _is_number(number: Any, part: Any, dtype: Any, pack: str, numbers: int) -> bool:
    indexed = type(number) is int and 0 <= number < numbers
    return indexed and part in ("real", "imag") and isinstance(dtype, str) and PACK_OF.get(dtype) == pack
