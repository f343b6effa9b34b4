"""Lowerings that are the same on every platform: whether this platform's XLA compiles them correctly."""

from __future__ import annotations

from lazytpu.doctor.check import check
from lazytpu.doctor.checks.lowerings import compare
from lazytpu.doctor.samples import ALIKE


@check(of=ALIKE, limit=90)
def template(name: str) -> str:
    """A template agrees with torch on the CPU."""
    return compare(ALIKE[name])
