"""Lookup of programs that an earlier process compiled for the same trace, without importing, rewriting
or emitting it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from lazytpu.engine.programs.binding import Binding
from lazytpu.engine.programs.environment import extended, settings
from lazytpu.engine.trace_cache import index
from lazytpu.engine.trace_cache.index import Malformed
from lazytpu.runtime.cache import programs
from lazytpu.runtime.cache.store import store
from lazytpu.runtime.cache.translation import KIND, describe, trace_key, translators
from lazytpu.runtime.xla.program import Program
from lazytpu.trace.trie import Record, State


def content(records: Sequence[Record], live: Sequence[int], dead: Sequence[int], about: str = "") -> str | None:
    """Return the digest under which a trace's program is stored; `about` describes the sizes of a program for many, or
    says that the processes of a job run it together.

    Return None if it cannot be stored: an argument has no canonical text, or rules or passes from outside lazytpu
    affect its translation.
    """
    return None if extended() else index.content(records, live, dead, [*settings(), *([about] if about else [])])


def known(content: str) -> bool:
    """Return whether an entry for a trace is on disk; its content is not checked."""
    return store().has(KIND, trace_key(content))


def recall(
    content: str, state: State, live: tuple[int, ...], dead: tuple[int, ...], load: Callable[[str], Program | None]
) -> tuple[Program, Binding] | None:
    """Return the program of a trace that ends at `state`, with its binding, or None. `load` returns an executable by
    its key.

    An entry that does not match the trace or its executable is removed with a warning.
    """
    key = trace_key(content)
    entry = store().get(KIND, key)
    if entry is None:
        return None
    try:
        program_key, binding = index.decode(entry.payload, state, live, dead)
        program = load(program_key)
        if program is None:
            return None
        if program.signature != binding.signature(state.records()):
            raise Malformed("its program takes or gives something else")
    except Malformed as error:
        store().reject(KIND, key, str(error))
        return None
    return program, binding


def note(content: str, program: str, binding: Binding, name: str, records: int, *, coming: bool = False) -> None:
    """Store an entry for a trace if its program is on disk, or `coming` there. `program` is the key of the program."""
    key = trace_key(content)
    if (coming or store().has(programs.KIND, program)) and store().writable() and not store().has(KIND, key):
        store().put(KIND, key, index.encode(program, binding), describe(name, records, program))


def dumped(content: str, binding: Binding, name: str, records: int, stablehlo: str) -> dict[str, Any]:
    """Return the description of a program whose StableHLO is dumped, for `lazytpu.runtime.tpu.ahead`: the entry, the
    versions that translated it, and the digest of the text."""
    return {
        "name": name,
        "records": records,
        "content": content,
        "translators": dict(translators()),
        "stablehlo": hashlib.sha256(stablehlo.encode()).hexdigest(),
        "entry": index.as_json("", binding),
    }
