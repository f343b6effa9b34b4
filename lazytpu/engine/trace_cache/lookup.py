"""Programs that an earlier process made of the same trace: found without importing, rewriting or emitting it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from lazytpu.aten.errors import Check
from lazytpu.aten.scalars import Packer
from lazytpu.engine.compiling.compiled import Compiled
from lazytpu.engine.compiling.environment import extended, settings
from lazytpu.engine.errors.lineage import lineage
from lazytpu.engine.errors.origins import origins
from lazytpu.engine.launching.inflight import Timing
from lazytpu.engine.trace_cache import index
from lazytpu.engine.trace_cache.index import Entry, Malformed
from lazytpu.runtime.cache import programs
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.cache.translation import KIND, describe, trace_key, translators
from lazytpu.runtime.chain import Chain
from lazytpu.runtime.program import Program
from lazytpu.trace.extract import Slots
from lazytpu.trace.trie import Record, State


def content(records: Sequence[Record], live: Sequence[int], dead: Sequence[int]) -> str | None:
    """The digest by which the program of a trace is found; None when it is not: an argument has no canonical text, or
    rules or passes from outside lazytpu have a say in what the trace means."""
    return None if extended() else index.content(records, live, dead, settings())


def recall(
    content: str,
    state: State,
    live: tuple[int, ...],
    dead: tuple[int, ...],
    name: str,
    load: Callable[[str], Program | None],
) -> Compiled | None:
    """The program of a trace that ends at `state`, or None. `load` finds an executable by its key.

    An entry that does not fit the trace, or its executable, is removed with a warning.
    """
    key = trace_key(content)
    found = store().get(KIND, key)
    if found is None:
        return None
    records = state.records()
    try:
        entry = index.decode(found.payload, state, live, dead)
        program = load(entry.program)
        if program is None:
            return None
        if program.signature != index.signature(entry, records):
            raise Malformed("its program takes or gives something else")
    except Malformed as error:
        store().reject(KIND, key, str(error))
        return None
    return compiled(entry, program, records, name)


def compiled(entry: Entry, program: Program | Chain, records: Sequence[Record], name: str) -> Compiled:
    """An entry with its program, as a cut needs it; source lines are those of `records`."""
    known = Slots(records)
    layouts = known.layouts
    specs = [index.spec(layouts[slot]) for slot in entry.live]
    sizes = tuple([dtype.itemsize * prod(shape) for dtype, shape in specs])
    made = origins(records, entry.live, name)
    checks = tuple(Check(message, error, str(records[i].op), records[i].line, i) for i, message, error in entry.checks)
    found = lineage(records, known, entry.live, checks)
    return Compiled(
        program=program,
        packer=Packer(entry.entries),
        packs=entry.packs,
        inputs=entry.inputs,
        donated=frozenset(entry.donated),
        live=entry.live,
        nbytes=sizes,
        origins=made,
        checks=checks,
        timing=Timing(),
        lineage=found,
    )


def note(content: str, entry: Entry, name: str, records: int) -> None:
    """Write down which program a trace has, if that program is on disk."""
    key = trace_key(content)
    if store().has(programs.KIND, entry.program) and store().writable() and not store().has(KIND, key):
        store().put(KIND, key, index.encode(entry), describe(name, records, entry.program))


def dumped(content: str, entry: Entry, name: str, records: int, stablehlo: str) -> dict[str, Any]:
    """What `lazytpu.runtime.cache.ahead` needs to know of a program whose StableHLO is in a dump: the same, with who
    translated it, and the digest of that text."""
    return {
        "name": name,
        "records": records,
        "content": content,
        "translators": dict(translators()),
        "stablehlo": hashlib.sha256(stablehlo.encode()).hexdigest(),
        "entry": index.as_json(entry),
    }
