"""Which traces vary: many of the same ops at the same lines of the script, each another trace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from lazytpu.trace.trie import Record

AFTER = 4
"Traces that do not vary yet: a first step, a steady one, one of a smaller last batch, an evaluation."
SHORT_AFTER = 1
"The same of short ones: another one of these runs on the host in the time in which a program is looked for."
MOST = 1024
"How many families are remembered; each is as large as the part of the script that it comes from."


class Families:
    """Counts traces by the set of their ops and lines."""

    def __init__(self) -> None:
        self._counts: OrderedDict[frozenset[tuple[Any, Any]], int] = OrderedDict()

    def vary(self, records: Sequence[Record], short: bool) -> bool:
        """Whether a trace, which may be `short`, is one of those that vary. It must not have been met before."""
        # A state keeps the line of its first recording, and a backward pass meets lines in another order each time.
        family = frozenset([(record.op, None if record.in_backward else record.line) for record in records])
        count = self._counts.pop(family, 0) + 1
        self._counts[family] = count
        if len(self._counts) > MOST:
            self._counts.popitem(last=False)
        return count > (min(AFTER, SHORT_AFTER) if short else AFTER)
