"""The captures of graphs by the layouts of their arguments: one for each variant, bounded like the trie."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from lazytpu.dynamo.results import Capture
from lazytpu.trace.eviction import LIMIT_BYTES, STATE_BYTES

LIMIT = LIMIT_BYTES // STATE_BYTES
"The maximum number of records of all captures together. A record takes about as much memory as a state of the trie."

_clock = itertools.count()


@dataclass(slots=True)
class _Kept:
    capture: Capture
    used: int

    @property
    def records(self) -> int:
        return max(1, len(self.capture.records))


class Captures:
    """The captures of the graphs of one name, in LRU order over all graphs. A graph that was evicted is captured again
    at its next miss."""

    def __init__(self) -> None:
        self.kept: dict[Any, _Kept] = {}

    @staticmethod
    def of(name: str) -> Captures:
        """Return the captures of the graphs with this name, shared while one of these graphs is alive."""
        return _of_graphs.setdefault(name, Captures())

    def get(self, structure: Any) -> Capture | None:
        """Return the capture for arguments of this structure, or None."""
        kept = self.kept.get(structure)
        if kept is None:
            return None
        kept.used = next(_clock)
        return kept.capture

    def keep(self, structure: Any, captured: Capture) -> None:
        """Add a capture, and evict others until all graphs together have at most LIMIT records."""
        self.kept[structure] = _Kept(captured, next(_clock))
        graphs = list(_of_graphs.values())
        everything = [(kept, key, graph) for graph in graphs for key, kept in list(graph.kept.items())]
        everything.sort(key=lambda entry: entry[0].used)
        records = sum(kept.records for kept, _, _ in everything)
        for kept, key, graph in everything[:-1]:  # the last one is new
            if records <= LIMIT:
                break
            graph.kept.pop(key, None)
            records -= kept.records


_of_graphs: WeakValueDictionary[str, Captures] = WeakValueDictionary()
