"""Detection of varying traces: many traces of the same ops at the same source lines, each a different trace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from lazytpu.trace.trie import Record

AFTER = 4
"""Number of traces of a family that are not counted as varying: a first step, a steady one, a smaller last batch, an
evaluation."""
SHORT_AFTER = 1
"""The same for short traces: a host run takes no longer than the search for a program."""
MOST = 1024
"""Number of families that are remembered; each is as large as the part of the script that it comes from."""


class Families:
    """Counts traces by their set of ops and source lines."""

    def __init__(self) -> None:
        self._counts: OrderedDict[frozenset[tuple[Any, Any]], int] = OrderedDict()

    def vary(self, records: Sequence[Record], short: bool) -> bool:
        """Count a new trace and return whether its family varies. `short` says whether the trace is short."""
        # Ignore lines in a backward pass: a state keeps its first line, and the order of a backward pass changes.
        family = frozenset([(record.op, None if record.in_backward else record.line) for record in records])
        count = self._counts.pop(family, 0) + 1
        self._counts[family] = count
        if len(self._counts) > MOST:
            self._counts.popitem(last=False)
        return count > (min(AFTER, SHORT_AFTER) if short else AFTER)
