"""Counts views that could only be imported as a gather or scatter, which is slow on a TPU."""

from __future__ import annotations

_count = 0


def gathers() -> int:
    """The number of such views in this process."""
    return _count


def note_gather() -> None:
    """Count one more."""
    global _count
    _count += 1
