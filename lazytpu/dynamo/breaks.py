"""The reasons why a compiled function is not one record or one program: Dynamo's graph breaks, graphs that are recorded
op by op, and other notes."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lazytpu.frontend.lines import SourceLine
from lazytpu.frontend.torch_private import GRAPH_BREAKS

LIMIT = 1024  # breaks: bounds the memory of a program that compiles without end


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place where compiled code is not one record: the `reason`, the user's `place` ("file:line"), and its source.

    `what` names the kind of note, if it is not a graph break.
    """

    reason: str
    place: str
    source: str = ""
    what: str = "graph break"

    def __str__(self) -> str:
        source = f"\n      {self.source}" if self.source else ""
        return f"{self.what} at {self.place}: {self.reason}{source}"


_noted: list[GraphBreak] = []


def note_one_by_one(reason: str, site: Any) -> None:
    """Note that a graph, called from `site`, is recorded op by op."""
    source = "" if site is None else site.text()
    _note(GraphBreak(f"a graph is recorded op by op: {reason}", str(site), source))


def note(what: str, reason: str, line: SourceLine) -> None:
    """Note another property of a compiled function; `what` names its kind."""
    _note(GraphBreak(reason, str(line), linecache.getline(line.file, line.line).strip(), what))


def _note(item: GraphBreak) -> None:
    if len(_noted) < LIMIT:
        _noted.append(item)


def graph_breaks() -> list[GraphBreak]:
    """Return all notes of this process, Dynamo's first. `torch._dynamo.reset()` clears Dynamo's."""
    return [*_of_dynamo(), *_noted]


def _of_dynamo() -> Iterator[GraphBreak]:
    seen: set[tuple[str, str]] = set()
    for graph_break in GRAPH_BREAKS.get() if GRAPH_BREAKS.module in sys.modules else ():
        frame = graph_break.user_stack[-1] if graph_break.user_stack else None
        place = "" if frame is None else f"{frame.filename}:{frame.lineno}"
        reason = graph_break.reason.strip().splitlines()[0] if graph_break.reason.strip() else "graph break"
        if (reason, place) not in seen:
            seen.add((reason, place))
            yield GraphBreak(reason, place, "" if frame is None else frame.line or "")
