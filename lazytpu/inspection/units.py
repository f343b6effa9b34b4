"""Times and sizes as text."""

from __future__ import annotations


def us(seconds: float) -> str:
    """Format a time in microseconds up to 10 ms, then in milliseconds."""
    return f"{1e6 * seconds:,.1f} us" if seconds < 1e-2 else f"{1e3 * seconds:,.1f} ms"


def age(seconds: float) -> str:
    """Format a time span in its largest unit: 7 s, 12 min, 3 h, 5 days."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds / length):,} {unit}"
    return f"{max(0, int(seconds))} s"


def size(count: float) -> str:
    """Format bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if count < 10_000:
            return f"{count:,.0f} {unit}" if unit == "B" or count >= 100 else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
