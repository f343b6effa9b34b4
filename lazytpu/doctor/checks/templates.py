"""The lowerings that are the same for every platform, too: whether this one's XLA compiles them as it should."""

from __future__ import annotations

from lazytpu.doctor.check import check
from lazytpu.doctor.checks.lowerings import compare
from lazytpu.doctor.samples import ALIKE


@check(of=ALIKE, limit=90)
def template(name: str) -> str:
    """A template gives what torch gives on the CPU."""
    return compare(ALIKE[name])
