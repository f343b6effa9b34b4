"""Other sizes at which a trace is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

WAYS: Sequence[tuple[Callable[[int], int], ...]] = (
    (lambda n: n * (2 + n % 3), lambda n: n * (5 + n // 3 % 3)),  # what divides a size divides these
    (lambda n: n + 1 + n % 2, lambda n: n + 4 + n % 3),  # not far behind it, as where a table ends
)
"""How the two other sizes are made at which a trace is looked at that nobody has shown at others. Equal ones stay
equal, as graphs of one trace have symbols of their own, and others are no multiples of one another."""
