"""Counts the views that could only be expressed as a gather or scatter: a slow path on a TPU."""

from __future__ import annotations

_count = 0


def gathers() -> int:
    """How many there were in this process."""
    return _count


def note_gather() -> None:
    """Count one."""
    global _count
    _count += 1
