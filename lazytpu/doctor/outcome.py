"""What can come of a check."""

from __future__ import annotations

from dataclasses import dataclass

WORKS = "works"
MISSING = "missing"
"lazytpu or XLA refuses it on this device, and says so: NotImplementedError."
BROKEN = "broken"
"It gave something else than it should, or another error."
CRASHED = "crashed"
"It ended its process."
HUNG = "hung"
"It took longer than its limit, and was ended."
LEFT_OUT = "not run"

BAD = (BROKEN, CRASHED, HUNG)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the check `name` of a `family`: a status, what was seen or what was wrong in words, and what its
    process wrote to its standard streams meanwhile (`said`)."""

    family: str
    name: str
    proves: str
    status: str
    detail: str
    seconds: float = 0.0
    said: str = ""
