"""What keeps a compiled function from being one record: Dynamo's graph breaks, and graphs that run op by op."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lazytpu.frontend.torch_private import GRAPH_BREAKS

LIMIT = 1024


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place where compiled code is not one record: the `reason`, the user's `place` ("file:line"), and its source."""

    reason: str
    place: str
    source: str = ""


_one_by_one: list[GraphBreak] = []


def note_one_by_one(name: str, reason: str, site: Any) -> None:
    """Remember that a graph's ops are recorded one by one."""
    if len(_one_by_one) < LIMIT:
        text = "" if site is None else site.text()
        _one_by_one.append(GraphBreak(f"a graph is recorded op by op: {reason}", str(site), text))


def graph_breaks() -> list[GraphBreak]:
    """All of this process so far, Dynamo's first. `torch._dynamo.reset()` clears Dynamo's."""
    return [*_of_dynamo(), *_one_by_one]


def _of_dynamo() -> Iterator[GraphBreak]:
    module, name = GRAPH_BREAKS
    seen: set[tuple[str, str]] = set()
    for noted in getattr(sys.modules.get(module), name, ()):
        frame = noted.user_stack[-1] if noted.user_stack else None
        place = "" if frame is None else f"{frame.filename}:{frame.lineno}"
        reason = noted.reason.strip().splitlines()[0] if noted.reason.strip() else "graph break"
        if (reason, place) not in seen:
            seen.add((reason, place))
            yield GraphBreak(reason, place, "" if frame is None else frame.line or "")
